"""Builds and times a network in float and mixtures of it that are partly in integers, for `tune quantize --measure`.
Start at `measure_latencies`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from tuner.cli.built import store_of
from tuner.cli.common import DEFAULT_DB, DEFAULT_DEVICE, Output, threads_text
from tuner.cli.network import Network, load_graph
from tuner.cli.on_board import is_on_board
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.quantization import Choice, Variant
    from tuner.quantization.samples import Sample

_MOST = 6  # mixtures that are timed beside the float network: all of them are built
_FLOAT = "float32"


@dataclass(frozen=True)
class TimingRequest:
    """Says on which device networks are timed, with how many threads, from which database they are built, and how many
    seconds all timed blocks take together (None: the usual ones)."""

    device: str = DEFAULT_DEVICE
    threads: int | None = None
    db: str = DEFAULT_DB
    seconds: float | None = None


@dataclass(frozen=True)
class Latencies:
    """What was measured on `device`: the seconds of an inference of the float network, and those of variants by the
    number of operators that they keep in float. `measured` of all `operators` of these networks have a config that was
    measured on this very device."""

    device: str
    float_seconds: float
    seconds: Mapping[int, float]
    measured: int
    operators: int

    def of(self, variant: Variant) -> float | None:
        """Return a variant's seconds, or None if it was not timed."""
        return self.seconds.get(variant.in_float)


def timing_asked(measure: bool, asked: TimingRequest) -> TimingRequest | None:
    """Return what is asked for, or None without --measure. Raises BadInput for a board, and for options that say how to
    measure while nothing is measured."""
    if not measure:
        if asked != TimingRequest():
            raise BadInput("--device, --threads, --db and --minutes say how latency is measured: give --measure, too")
        return None
    if is_on_board(asked.device):
        raise BadInput(f"--device {asked.device}: networks are timed on devices of this machine alone")
    return asked


def measure_latencies(network: Network, choice: Choice, inputs: Sample, asked: TimingRequest, out: Output) -> Latencies:
    """Build the float network and some variants with the best known configs, and time them in turns on `inputs`.

    The variants are the one that is all in integers, the chosen one, and some between these and float. Raises BadInput
    for a network or a device that cannot be used, DatabaseError for a database that cannot be read.
    """
    import onnx

    from tuner.devices import open_device, usable_cpus
    from tuner.measure.scratch import Scratch
    from tuner.module import build
    from tuner.report.bench import BLOCK_SECONDS, ROUNDS, BenchOptions, time_together

    device = open_device(asked.device, asked.threads)
    threads = device.threads if device.is_host else open_device(DEFAULT_DEVICE).threads
    variants = {_name(variant): variant for variant in chosen_variants(choice)}
    with Scratch() as folder:
        files = {_FLOAT: network}
        for name, variant in variants.items():
            files[name] = Network(folder / f"{variant.in_float}.onnx")
            onnx.save(choice.write(variant), files[name].file)
        modules = {name: folder / str(number) for number, name in enumerate(files)}
        with store_of(asked.db, out, read_only=True) as store:
            manifests = []
            for name, file in files.items():
                out.remark(f"building {name}")
                manifests.append(build(load_graph(file, out, [device]), device, modules[name], store))
        block = BLOCK_SECONDS if asked.seconds is None else asked.seconds / ROUNDS / len(modules)
        options = BenchOptions(threads, tuple(usable_cpus()[:threads]), ROUNDS, block)
        seconds = time_together(modules, inputs=inputs, options=options, progress=out.remark)
    sources = [operator.source for manifest in manifests for operator in manifest.operators]
    return Latencies(
        device=device.title + (f", {threads_text(device.threads)}" if device.is_host else ""),
        float_seconds=seconds[_FLOAT],
        seconds={variant.in_float: seconds[name] for name, variant in variants.items()},
        measured=sources.count("device"),
        operators=len(sources),
    )


def chosen_variants(choice: Choice) -> list[Variant]:
    """Return which variants are timed, by the number of operators in float: the first, the chosen one, and others
    evenly spread over those that still have operators in integers."""
    usable = [variant for variant in choice.variants if variant.in_integers]
    last = len(usable) - 1
    spread = {round(i * last / (_MOST - 2)) for i in range(_MOST - 1)}
    kept = {usable[i].in_float for i in spread} | {choice.chosen.in_float}
    return [variant for variant in usable if variant.in_float in kept]


def latency_table(choice: Choice, latencies: Latencies) -> Table:
    """Return a table of the networks that were timed: their quality, and their latency."""
    from tuner.report.text import milliseconds

    table = Table("operators kept in float", "multiply-adds in int8", "SQNR, dB", "ms", "times faster than float32")
    table.add_row("all", "-", "-", milliseconds(latencies.float_seconds), "1.00")
    for variant in reversed(choice.variants):
        if (seconds := latencies.of(variant)) is not None:
            count = f"{variant.in_float}{' (written)' if variant == choice.chosen else ''}"
            faster = f"{latencies.float_seconds / seconds:.2f}"
            table.add_row(count, f"{variant.share:.1%}", f"{variant.quality.sqnr:.1f}", milliseconds(seconds), faster)
    return table


def _name(variant: Variant) -> str:
    return f"the network with {variant.in_float} operator{'' if variant.in_float == 1 else 's'} kept in float"
