"""`tune quantize M.onnx --calibration DATA -o M.int8.onnx` writes a model whose layers multiply integers of 8 bits."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    DeviceOption,
    JsonOption,
    Output,
    ThreadsOption,
    check_file,
    check_parent_writable,
    seconds_of,
    split_list,
)
from tuner.cli.mixtures import Latencies, TimingRequest, latency_table, measure_latencies, timing_asked
from tuner.cli.network import BatchOption, ModelArgument, Network, ShapeOption, network_asked
from tuner.errors import BadInput
from tuner.files import write_whole

if TYPE_CHECKING:
    from tuner.quantization import Judged, Pixels, Quantized, Variant

_CURVE = 8  # variants that are measured for a report or for latencies, besides those that the bounds need
_ROWS = 15  # operators in the table besides those in float: those that cost most


class Method(StrEnum):
    """How ranges follow from values. tuner.quantization.calibration has their meaning."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"


CalibrationOption = Annotated[
    Path,
    typer.Option(
        "--calibration",
        "-c",
        metavar="DATA",
        help="Samples: a folder of .npy files, of .npz files or of images, or one .npz file with the samples along the "
        "first axis of each input.",
    ),
]
MaxDropOption = Annotated[
    float | None,
    typer.Option(
        "--max-drop",
        metavar="POINTS",
        min=0.0,
        help="Keep operators in float until top-1 falls by at most so many percentage points; without --labels, until "
        "the largest class is the float network's in all but so many per cent of the samples.",
    ),
]
MinSqnrOption = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="Keep operators in float until the outputs' signal to quantisation noise ratio is at least so many "
        "decibels.",
    ),
]
EXAMPLES = (
    "tune quantize net.onnx --calibration images -o net.int8.onnx",
    "tune quantize net.onnx -c s.npz --labels l.txt --max-drop 0.5 -o q.onnx",
    "tune quantize net.onnx -c images --measure --report q.html -o q.onnx",
)


def command(
    model: ModelArgument,
    *,
    calibration: CalibrationOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The quantised model to write.")],
    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="How a tensor's range follows from its values: all of them; a percentage of them; the range with the "
            "least relative entropy.",
        ),
    ] = Method.MINMAX,
    percentile: Annotated[
        float, typer.Option("--percentile", metavar="P", help="The percentage of the values that percentile keeps.")
    ] = 99.999,
    max_drop: MaxDropOption = None,
    min_sqnr: MinSqnrOption = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", metavar="FILE", help="The right class of each sample, as whole numbers in a text."),
    ] = None,
    scale: Annotated[float, typer.Option("--scale", help="What pixels of images are divided by at first.")] = 255.0,
    mean: Annotated[
        str, typer.Option("--mean", metavar="M,...", help="What is subtracted then; for all or each channel.")
    ] = "0",
    std: Annotated[
        str, typer.Option("--std", metavar="S,...", help="What is divided by last; for all or each channel.")
    ] = "1",
    shape: ShapeOption = None,
    batch: BatchOption = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Also write a page that plots quality against integers, or, with --measure, against latency.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also build the float network, the written one and some mixtures from the database, and time them.",
        ),
    ] = False,
    device: DeviceOption = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    db: DbOption = DEFAULT_DB,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Time for all timed blocks of --measure together.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantise a model to 8 bits, and keep in float what costs too much accuracy."""
    network = network_asked(model, shape, batch)
    for path in filter(None, (output, report)):
        check_parent_writable(path)
        if path.is_dir() or path.absolute() == model.absolute():
            raise BadInput(f"{path}: is {'a folder' if path.is_dir() else 'the model itself'}; name another file")
    if labels is not None:
        check_file(labels, "a text with the class of each sample")
    if not 0 < percentile <= 100:
        raise BadInput(f"--percentile {percentile:g}: give one above 0 and up to 100, such as 99.99")
    timing = timing_asked(measure, TimingRequest(device, threads, db, seconds_of(minutes)))
    curve = _CURVE if measure or report is not None else 0
    request = _Request(network, calibration, labels, (method, percentile), (max_drop, min_sqnr), curve, timing)

    with Output(as_json) as out:
        done, latencies = _quantized(request, _pixels(scale, mean, std), out)
        if report is not None:
            from tuner.report.page import render_quantised

            write_whole(report, render_quantised(_as_dict(done, request, latencies)).encode())
        write_whole(output, done.choice.model.SerializeToString())
        _show(done, labels is not None, out)
        if latencies is not None:
            _show_latencies(done, latencies, out)
        out.show(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")
        if report is not None:
            out.show(f"wrote {report}: open it in a browser")
        files = {"output": str(output), "report": None if report is None else str(report)}
        out.result({**files, **_as_dict(done, request, latencies)})


@dataclass(frozen=True)
class _Request:
    """Holds what is quantised, with which samples and labels, by which method (and its percentage), and within which
    bounds (percentage points of top-1, and decibels). `curve` variants are measured besides those that the bounds need.
    `timing` says how latency is measured, if it is."""

    network: Network
    samples: Path
    labels: Path | None
    method: tuple[Method, float]
    bounds: tuple[float | None, float | None]
    curve: int
    timing: TimingRequest | None


def _quantized(request: _Request, pixels: Pixels, out: Output) -> tuple[Quantized, Latencies | None]:
    """Quantise a network, and measure latencies if they are asked for. Raises BadInput if it cannot be done."""
    from tuner.quantization import Bounds, Calibration, Wanted, open_samples, prepare, quantize, read_labels
    from tuner.quantization import Method as Ranges

    network, (method, percentile) = request.network, request.method
    with tempfile.TemporaryDirectory(prefix="edgetune-quantize-") as folder:
        prepared = prepare(network.file, network.shapes, network.batch, scratch=Path(folder))
        for line in prepared.remarks:
            out.remark(line)
        samples = open_samples(request.samples, prepared.inputs, pixels)
        if len(samples) == 1:
            out.remark(f"{request.samples}: holds one sample, which is calibrated with and judged on: give more")
        rows = prepared.inputs[0].shape[0] if prepared.inputs and prepared.inputs[0].shape else 1
        labels = None if request.labels is None else read_labels(request.labels, len(samples), rows)
        wanted = Wanted(Calibration(Ranges(method), percentile), Bounds(*request.bounds), labels, request.curve)
        done = quantize(prepared, samples, wanted, scratch=Path(folder))
        if request.timing is None:
            return done, None
        return done, measure_latencies(network, done.choice, samples[0], request.timing, out)


def _pixels(scale: float, mean: str, std: str) -> Pixels:
    """Return what the options say of pixels. Raises BadInput for what are no numbers, and for a division by 0."""
    from tuner.quantization import Pixels

    means, deviations = _numbers("--mean", mean), _numbers("--std", std)
    if not scale > 0 or min(deviations) <= 0:
        raise BadInput("--scale and --std divide: give numbers above 0")
    return Pixels(scale, means, deviations)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(item) for item in split_list(text))
    except ValueError:
        numbers = ()
    if not numbers:
        raise BadInput(f"{option} {text}: give one number, or one for each channel, separated by commas")
    return numbers


def _show(done: Quantized, has_labels: bool, out: Output) -> None:
    """Print the operators that cost most and those in float, and how good the networks are."""
    choice = done.choice
    ranked = sorted(choice.operators, key=lambda judged: float("inf") if judged.sqnr is None else judged.sqnr)
    shown = [judged for index, judged in enumerate(ranked) if index < _ROWS or judged.why_float]
    out.show(_operators(shown))
    if len(shown) < len(ranked):
        out.show(f"and {len(ranked) - len(shown)} more in int8, which cost less (--json lists them)")
    out.show(_qualities(done, has_labels))
    products = [judged for judged in choice.operators if judged.operator.is_product]
    whole = sum(not judged.why_float for judged in products)
    share = f"{100 * choice.chosen.share:.1f} % of the multiply-adds"
    out.show(f"{whole} of {len(products)} convolutions and dense layers are in int8, with {share}")


def _show_latencies(done: Quantized, latencies: Latencies, out: Output) -> None:
    out.show(latency_table(done.choice, latencies))
    out.show(
        f"timed in turns on {latencies.device}; {latencies.measured} of the {latencies.operators} operators of these "
        "networks have a config that was measured there (tune model M.onnx tunes those of one network)"
    )


def _operators(judged: Sequence[Judged]) -> Table:
    table = Table("operator", "type", "SQNR alone, dB", "computed in", "why")
    for one in judged:
        alone = "-" if one.sqnr is None else f"{one.sqnr:.1f}"
        table.add_row(
            one.operator.name, one.operator.type, alone, "float32" if one.why_float else "int8", one.why_float
        )
    return table


def _qualities(done: Quantized, has_labels: bool) -> Table:
    """Return a table of how good the float network, the one that is all in integers, and the chosen one are."""
    choice, top1 = done.choice, "right top-1, %" if has_labels else "same top-1, %"
    table = Table(f"on {done.judged} held-out samples", "SQNR, dB", *([top1] if done.classes else []))
    rows = {"float32": choice.exact, "all in int8": choice.variants[0].quality, "written": choice.chosen.quality}
    for name, quality in rows.items():
        sqnr = "-" if name == "float32" else f"{quality.sqnr:.1f}"
        table.add_row(name, sqnr, *([] if quality.top1 is None else [f"{quality.top1:.2f}"]))
    return table


def _as_dict(done: Quantized, request: _Request, latencies: Latencies | None) -> dict[str, Any]:
    """Return what was done as JSON: decibels, per cent, shares of 1, and seconds."""
    choice = done.choice

    def described(variant: Variant) -> dict[str, Any]:
        return {**asdict(variant), "seconds": latencies and latencies.of(variant)}

    return {
        "model": str(request.network.file),
        "method": request.method[0].value,
        "max_drop": request.bounds[0],
        "min_sqnr": request.bounds[1],
        "samples": {"calibrated": done.calibrated, "judged": done.judged},
        "top1_is": None if done.classes is None else "accuracy" if request.labels else "agreement",
        "operators": [
            {
                "name": judged.operator.name,
                "type": judged.operator.type,
                "multiply_adds": judged.operator.multiply_adds,
                "sqnr_alone": judged.sqnr,
                "computed_in": "float32" if judged.why_float else "int8",
                "why": judged.why_float,
            }
            for judged in choice.operators
        ],
        "float": {**asdict(choice.exact), "seconds": latencies and latencies.float_seconds},
        "variants": [described(variant) for variant in choice.variants],
        "chosen": described(choice.chosen),
        "timed_on": latencies and latencies.device,
    }
