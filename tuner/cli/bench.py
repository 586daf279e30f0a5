"""`tune bench DIR --against ort,openvino,default` compares a built module with its peers in one alternating run.

With `--profile` and no peers it only tells where the module's time goes. On a board it times the module alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import JsonOption, Output, check_file, seconds_of, split_list
from tuner.cli.completion import PEERS, several_of
from tuner.cli.network import find_model
from tuner.cli.on_board import BoardOption, check_board
from tuner.cli.run import ModuleArgument
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.module import Manifest
    from tuner.report.bench import Comparison

EXAMPLES = (
    "tune bench resnet18.tuned --against ort,openvino,default",
    "tune bench resnet18.tuned --profile --threads 1",
    "tune bench resnet18.pi --device board:pi",
)


def command(
    module: ModuleArgument,
    *,
    device: BoardOption = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            help="Peers, separated by commas: ort, openvino, opencv, ncnn, mnn, default.",
            autocompletion=several_of(PEERS),
        ),
    ] = "",
    profile: Annotated[
        bool, typer.Option("--profile", help="Time of every operator, transform and copy; needs no peer.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="M.onnx", help="What the peers run (default: the file it was built from)."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of every contender (default: as built, or all for a GPU)."),
    ] = None,
    streams: Annotated[
        int,
        typer.Option(
            "--streams", min=1, help="Inferences at the same time, each in a process with threads of its own."
        ),
    ] = 1,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Blocks of each contender.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Time for all timed blocks together.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare a built module with its peers, and tell where its time goes."""
    seconds, peers = seconds_of(minutes), split_list(against)
    check_board(device)
    if device is not None and (peers or profile):
        raise BadInput(f"--device {device}: a board times a whole network alone: leave --against and --profile away")
    if device is not None and streams > 1:
        raise BadInput(f"--device {device}: a board runs one inference at a time: leave --streams away")
    if not peers and not profile and device is None:
        raise BadInput("nothing is asked for: name peers with --against, or give --profile")
    with Output(as_json) as out:
        asked = BenchRequest(module, peers, model, threads, rounds, seconds, seed, streams)
        comparison = compare(asked, out) if device is None else time_on_board(asked, device, out)
        show(comparison, out)
        out.result({"module": str(module), "device": device, **comparison.as_dict()})


@dataclass(frozen=True)
class BenchRequest:
    """Says what is compared: the module in a folder, and peers by name, which run the file `model`. Without peers the
    module is timed alone.

    None stands for a default: the file that the module was built from, as many threads as it was built for, and the
    usual rounds. `seconds` is the time of all timed blocks together. `seed` is that of the random inputs. `streams`
    inferences run at the same time.
    """

    module: Path
    peers: Sequence[str] = ()
    model: Path | None = None
    threads: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    seed: int = 0
    streams: int = 1


def compare(asked: BenchRequest, out: Output) -> Comparison:
    """Check the request, then compare the module with its peers. Raises BadInput if it cannot be met."""
    from tuner.report.peers import peer_named

    module, peers = asked.module, asked.peers
    for name in peers:
        peer_named(name)
    if asked.model is not None:
        check_file(asked.model, "the ONNX model that the module was built from")

    from tuner.devices import open_device
    from tuner.module import random_inputs, read_manifest
    from tuner.report import bench

    manifest = read_manifest(module)
    source = find_model(module, manifest, asked.model) if peers else Path(manifest.model["source"])
    device = open_device("cpu", asked.threads or (manifest.threads if manifest.computes_on_host else None))
    if manifest.computes_on_host and device.threads != manifest.threads:
        out.remark(f"{module} was built for {manifest.threads} threads and is compared with {device.threads}")
    rounds = asked.rounds or bench.ROUNDS
    block = bench.BLOCK_SECONDS if asked.seconds is None else asked.seconds / rounds / (len(peers) + 1)
    options = bench.BenchOptions(device.threads, _cpus(manifest, device, asked.streams), rounds, block, asked.streams)
    inputs = random_inputs(manifest.inputs, asked.seed)
    return bench.compare(module, source, peers, inputs=inputs, options=options, progress=out.remark)


def _cpus(manifest: Manifest, device: Device, streams: int) -> tuple[int, ...]:
    """Return the CPUs for all threads of all streams. Raises BadInput if there are fewer, and for streams of a GPU."""
    from tuner.devices import usable_cpus

    cpus, needed = usable_cpus(), streams * device.threads
    if streams > 1 and not manifest.computes_on_host:
        raise BadInput(f"--streams {streams}: is for modules of a CPU")
    if streams > 1 and needed > len(cpus):
        raise BadInput(f"--streams {streams}: needs {needed} cores, and {len(cpus)} may be used: give fewer")
    return tuple(cpus[:needed])


def time_on_board(asked: BenchRequest, device: str, out: Output) -> Comparison:
    """Time the module alone on a board. Raises BadInput if that is not possible."""
    from tuner.export.on_board import opened_on_board
    from tuner.module import random_inputs
    from tuner.report import bench

    rounds = asked.rounds or bench.ROUNDS
    block = bench.BLOCK_SECONDS if asked.seconds is None else asked.seconds / rounds
    with opened_on_board(asked.module, device, threads=asked.threads, notice=out.remark) as network:
        if network.threads != network.manifest.threads:
            built = network.manifest.threads
            out.remark(f"{asked.module} was built for {built} threads and is timed with {network.threads}")
        options = bench.BenchOptions(network.threads, network.cpus, rounds, block)
        inputs = random_inputs(network.manifest.inputs, asked.seed)
        return bench.time_on_board(network, inputs=inputs, options=options, progress=out.remark)


def show(comparison: Comparison, out: Output) -> None:
    """Print which peers were skipped and why, the table of operators if there is one, the module's sizes and the table
    of contenders."""
    from tuner.report.tables import comparison_table, operator_table, sizes_text

    for name, reason in comparison.skipped.items():
        out.remark(f"{name} is skipped: {reason}")
    if comparison.profile is None:
        out.remark("a board times whole networks: where the time goes is not known")
    else:
        out.show(operator_table(comparison.profile))
    if comparison.sizes is not None:
        out.show(f"the module: {sizes_text(comparison.sizes)}")
    out.show(comparison_table(comparison))
