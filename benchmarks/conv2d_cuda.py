"""This benchmark compares convolutions of our templates with cuDNN's on an Nvidia GPU (through torch, benchmark mode).

    python benchmarks/conv2d_cuda.py [--quick] [--json] [--device cuda:N] [--set resnet18|wpk]
                                     [--dtype float32|float16|tf32] [--trials 64] [--minutes M] [--keep DIR]

The layers are ResNet-18's convolutions and those of table 1 in Liu et al., "Woodpecker-DL: Accelerating Deep Neural
Networks via Hardware-Aware Multifaceted Optimizations", at batch 1. Every layer, with bias and ReLU, is tuned by us. It
then takes turns with cuDNN's convolution alone (in the faster of both memory formats), and with cuDNN's fused
convolution, bias and ReLU. All have cold weights, and each is checked against a float64 reference first. Both sides use
tensor cores in float16, and in float32 only with `--dtype tf32`. Then both may round operands to tf32, and the error
allowed is that of our template for tf32. `--minutes` limits tuning, all layers together. Ratios are the peer's seconds
over ours: above 1 ours is faster. torch with CUDA is needed. The exit status is 1 if a layer has no row.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from conv2d_cpu import EPILOGUE, QUICK, SETS, geomean, layer_name
from conv2d_cuda_kernels import Layer, Run, WrongAnswer, alternated

from templates.template import all_templates, template_named
from templates.workloads import Conv2d
from tuner.devices import Device, open_device
from tuner.measure import LocalRunner, MeasureOptions
from tuner.session import Budget, Stopped, Task, TuneOptions, tune
from tuning_db.record import Trial, tolerance_of
from tuning_db.store import open_db

PEERS = ("cudnn", "cudnn_fused")
TF32 = "gpu.conv2d_tensor_core_tf32"
# Liu et al., table 1: height, width, input and output channels, stride. All are 3x3 and without padding.
WPK = [
    Conv2d(1, c, height, width, k, (3, 3), (stride, stride))
    for height, width, c, k, stride in [
        (112, 96, 3, 64, 1),
        (110, 94, 64, 96, 2),
        (54, 46, 96, 128, 2),
        (26, 22, 128, 256, 2),
        (12, 10, 256, 512, 1),
    ]
]


@dataclass(frozen=True)
class Mode:
    """A mode in which a layer is computed.

    `dtype` is the type of the stored tensors. `tolerance` is the largest relative error allowed (None: the dtype's).
    """

    dtype: str
    tolerance: float | None = None

    @property
    def tf32(self) -> bool:
        return self.tolerance is not None

    @property
    def only(self) -> list[str] | None:
        """Return the templates that may be used; None means all except those that must be asked for."""
        return [template.name for template in all_templates()] if self.tf32 else None


MODES = {
    "float32": Mode("float32"),
    "float16": Mode("float16"),
    "tf32": Mode("float32", template_named(TF32).tolerance),
}


@dataclass(frozen=True)
class Row:
    """A row of the result, which holds one layer in one mode (`dtype`). Seconds are medians of alternated blocks."""

    set: str
    dtype: str
    name: str
    template: str
    seconds: Mapping[str, float]
    gflops: float
    error: float
    trials: int
    failures: Mapping[str, int]

    def ratio(self, peer: str) -> float | None:
        return self.seconds[peer] / self.seconds["ours"] if peer in self.seconds else None


@dataclass(frozen=True)
class Tuned:
    """A layer that was tuned, with all of its trials, the best first. `folder` holds its files."""

    set: str
    conv: Conv2d
    dtype: str
    folder: Path
    trials: list[Trial]


def tuned(dtype: str, minutes: float | None, device: Device, options: argparse.Namespace, folder: Path) -> list[Tuned]:
    """Tune all layers and return those that have a config with a correct result. The others are named.

    They are tuned in one session, so that all cores build candidates for the layer that promises most.
    """
    mode, layers = MODES[dtype], list(_layers(options))
    workloads = [conv.workload(EPILOGUE, mode.dtype) for _, conv in layers]
    tasks = [Task(w, 1, layer_name(conv)) for w, (_, conv) in zip(workloads, layers, strict=True)]
    budget = Budget(trials=options.trials * len(layers), seconds=None if minutes is None else 60 * minutes)
    runner = LocalRunner(device, MeasureOptions(seed=options.seed, tolerance=mode.tolerance))
    found = []
    with runner, open_db(f"{folder}/{dtype}.db") as store:
        report = tune(tasks, device, store, runner, TuneOptions(budget=budget, seed=options.seed, only=mode.only))
        if report.stopped is Stopped.INTERRUPTED:
            raise KeyboardInterrupt
        for workload, (name, conv) in zip(workloads, layers, strict=True):
            best = store.best(workload, device.key, mode.tolerance)
            if best is None:
                _say(f"{dtype} {layer_name(conv)}: no config was measured and right")
                continue
            others = [trial for trial in store.trials(workload, device.key) if trial != best]
            place = folder / f"{name}-{dtype}-{layer_name(conv)}".replace(" ", "_")
            place.mkdir(parents=True, exist_ok=True)
            found.append(Tuned(name, conv, dtype, place, [best, *others]))
    return found


def measure(layer: Tuned, device: Device, rounds: int) -> Row:
    """Time our kernel in turns with cuDNN's, either of which may be left out. Raises WrongAnswer if ours is wrong."""
    mode, best = MODES[layer.dtype], layer.trials[0]
    tolerance = tolerance_of(mode.dtype) if mode.tolerance is None else mode.tolerance
    opened = Layer(layer.conv, mode.dtype, mode.tf32, tolerance, device)
    runs: dict[str, Run] = {"ours": opened.ours(best.config, layer.folder)}
    for peer in PEERS:
        try:
            runs[peer] = opened.cudnn(peer == "cudnn_fused")
        except (WrongAnswer, RuntimeError) as error:  # torch has no kernel for this layer, or no memory
            _say(f"{layer.dtype} {layer_name(layer.conv)}: {peer} is left out: {error}")
    seconds = alternated(runs, rounds)
    torch.cuda.empty_cache()
    kinds = [str(trial.failure.kind) for trial in layer.trials if trial.failure is not None]
    return Row(
        layer.set,
        layer.dtype,
        layer_name(layer.conv),
        best.config.template,
        seconds,
        layer.conv.flop / seconds["ours"] / 1e9,
        float(best.error or 0.0),
        len(layer.trials),
        {kind: kinds.count(kind) for kind in sorted(set(kinds))},
    )


def _layers(options: argparse.Namespace) -> Iterator[tuple[str, Conv2d]]:
    for name, layers in (("resnet18", SETS["resnet18"]), ("wpk", WPK)):
        if options.set is None or name in options.set:
            quick = QUICK["resnet18"] if name == "resnet18" else [1]
            yield from ((name, conv) for i, conv in enumerate(layers) if not options.quick or i in quick)


def _summary(rows: list[Row]) -> dict[str, float | None]:
    summary: dict[str, float | None] = {}
    for key in dict.fromkeys((row.set, row.dtype) for row in rows):
        mine = [row for row in rows if (row.set, row.dtype) == key]
        for peer in PEERS:
            ratios = [ratio for row in mine if (ratio := row.ratio(peer)) is not None]
            summary[f"{'_'.join(key)}_vs_{peer}_geomean"] = geomean(ratios)
            summary[f"{'_'.join(key)}_vs_{peer}_most"] = max(ratios, default=None)
    return summary


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_row(row: Row) -> None:
    ratios = "  ".join(f"{peer} {'-' if (r := row.ratio(peer)) is None else f'{r:.2f}x':>6}" for peer in PEERS)
    _say(
        f"{row.dtype} {row.name:32s} {row.template:24s} {row.seconds['ours'] * 1e6:8.1f} us {row.gflops:8.1f} GF/s"
        f"  {ratios}  error {row.error:.1e}  failures {dict(row.failures)} of {row.trials}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four layers, 16 trials")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--set", action="append", choices=("resnet18", "wpk"), help="default: both")
    parser.add_argument("--dtype", action="append", choices=tuple(MODES), help="default: float32 and float16")
    parser.add_argument("--trials", type=int, help="of a layer and dtype, on average (default: 64)")
    parser.add_argument("--minutes", type=float, help="of tuning, all layers together (default: no limit)")
    parser.add_argument("--rounds", type=int, default=9, help="alternated blocks per contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was tuned there, and go on from it")
    options = parser.parse_args()
    options.trials = options.trials or (16 if options.quick else 64)
    return options


def main() -> int:
    options = _options()
    device, dtypes = open_device(options.device), options.dtype or ["float32", "float16"]
    minutes = None if options.minutes is None else options.minutes / len(dtypes)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        folder = Path(options.keep or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for dtype in dtypes:
            for layer in tuned(dtype, minutes, device, options, folder):
                try:
                    rows.append(measure(layer, device, options.rounds))
                    _print_row(rows[-1])
                except WrongAnswer as error:
                    _say(f"{layer.dtype} {layer_name(layer.conv)}: ours is wrong: {error}")
    result = {
        "summary": _summary(rows),
        "rows": [asdict(row) for row in rows],
        "machine": {"device": device.key.as_dict(), "platform": platform.platform()},
        "versions": {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()},
    }
    for key, value in result["summary"].items():
        _say(f"{key:48s} {'-' if value is None else f'{value:.2f}'}")
    if options.json:
        print(json.dumps(result))
    return 0 if len(rows) == len(dtypes) * len(list(_layers(options))) else 1


if __name__ == "__main__":
    sys.exit(main())
