"""Convolutions on an Nvidia GPU: our templates beside cuDNN (through torch, in its benchmark mode), correctness first.

    python benchmarks/conv2d_cuda.py [--quick] [--json] [--device cuda:N] [--set resnet18|wpk]
                                     [--dtype float32|float16|tf32] [--trials 64] [--keep DIR]

ResNet-18's convolutions and those of Woodpecker-DL's Table 1, batch 1. Every layer (bias and ReLU included) is tuned by
us, checked against a float64 reference, and takes turns with cuDNN's convolution alone (the faster of both memory
formats) and with its fused convolution, bias and ReLU, each in a process of its own and with cold weights. Tensor cores
are ours and cuDNN's in float16, and in float32 only with `--dtype tf32`: then both may round operands to tf32, and the
error allowed is that of our template for it.
Ratios are times better than: above 1 is ours ahead. torch with CUDA is needed.
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
from typing import Any

from conv2d_cpu import EPILOGUE, QUICK, SETS, files_of, geomean, layer_name, plain_operands, time_all, tune_layer

from templates.template import all_templates, template_named
from templates.workloads import Conv2d
from tuner.devices import Device, open_device, usable_cpus
from tuner.measure import LocalRunner, MeasureOptions
from tuner.session import Budget
from tuning_db.record import Trial, tolerance_of
from tuning_db.store import open_db

CHILD = Path(__file__).with_name("conv2d_cuda_child.py")
PEERS = ("cudnn", "cudnn_fused")
TF32 = "gpu.conv2d_tensor_core_tf32"
# Table 1 of "Woodpecker-DL": height, width, input and output channels, stride; 3x3, and nothing padded.
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
    """How a layer is computed. `dtype`: of what is stored. `tolerance`: of the error (None: the dtype's)."""

    dtype: str
    tolerance: float | None = None

    @property
    def tf32(self) -> bool:
        return self.tolerance is not None

    @property
    def only(self) -> list[str] | None:
        """The templates that may be used; None: all but those that must be asked for."""
        return [template.name for template in all_templates()] if self.tf32 else None


MODES = {
    "float32": Mode("float32"),
    "float16": Mode("float16"),
    "tf32": Mode("float32", template_named(TF32).tolerance),
}


@dataclass(frozen=True)
class Row:
    """One layer in one mode (`dtype`). Seconds are medians of the alternated blocks."""

    set: str
    dtype: str
    name: str
    template: str
    seconds: Mapping[str, float]
    gflops: float
    error: float
    trials: int
    failures: Mapping[str, int]

    def ratio(self, peer: str) -> float:
        return self.seconds[peer] / self.seconds["ours"]


def _tune(conv: Conv2d, mode: Mode, device: Device, options: argparse.Namespace, folder: Path) -> list[Trial]:
    """All trials of the layer, the best first."""
    workload = conv.workload(EPILOGUE, mode.dtype)
    with open_db(f"{folder}/b.db") as store:
        with LocalRunner(device, MeasureOptions(seed=options.seed, tolerance=mode.tolerance)) as runner:
            budget = Budget(trials=options.trials)
            tune_layer(conv, workload, device, store, runner, budget, seed=options.seed, only=mode.only)
        best = store.best(workload, device.key, mode.tolerance)
        assert best is not None
        return [best, *(trial for trial in store.trials(workload, device.key) if trial != best)]


def measure(name: str, conv: Conv2d, dtype: str, device: Device, options: argparse.Namespace, folder: Path) -> Row:
    folder.mkdir(parents=True, exist_ok=True)
    mode = MODES[dtype]
    best, *others = _tune(conv, mode, device, options, folder)
    common = {
        "cpus": usable_cpus(),
        "cold_bytes": 2 * device.cache_bytes,
        "conv": asdict(conv),
        "device": device.name,
        "dtype": mode.dtype,
        "tf32": mode.tf32,
        "tolerance": tolerance_of(mode.dtype) if mode.tolerance is None else mode.tolerance,
    }
    plain = {**common, "operands": plain_operands(conv, folder, mode.dtype)}
    specs: dict[str, Any] = {"ours": {**common, **files_of(conv, device, best.config, folder, "ours", mode.dtype)}}
    specs |= {peer: {**plain, "kind": peer} for peer in PEERS}
    seconds = time_all(specs, folder, options.rounds, CHILD)
    kinds = [str(trial.failure.kind) for trial in others if trial.failure is not None]
    return Row(
        name,
        dtype,
        layer_name(conv),
        best.config.template,
        seconds,
        conv.flop / seconds["ours"] / 1e9,
        float(best.error or 0.0),
        1 + len(others),
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
            ratios = [row.ratio(peer) for row in mine]
            summary[f"{'_'.join(key)}_vs_{peer}_geomean"] = geomean(ratios)
            summary[f"{'_'.join(key)}_vs_{peer}_most"] = max(ratios)
    return summary


def _print_row(row: Row) -> None:
    ratios = "  ".join(f"{peer} {row.ratio(peer):5.2f}x" for peer in PEERS)
    print(
        f"{row.dtype} {row.name:32s} {row.template:24s} {row.seconds['ours'] * 1e6:8.1f} us {row.gflops:8.1f} GF/s"
        f"  {ratios}  error {row.error:.1e}  failures {dict(row.failures)} of {row.trials}",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four layers, 16 trials")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--set", action="append", choices=("resnet18", "wpk"), help="default: both")
    parser.add_argument("--dtype", action="append", choices=tuple(MODES), help="default: float32 and float16")
    parser.add_argument("--trials", type=int, help="per layer and dtype (default: 64)")
    parser.add_argument("--rounds", type=int, default=9, help="alternated blocks per contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was tuned there, and go on from it")
    options = parser.parse_args()
    options.trials = options.trials or (16 if options.quick else 64)
    device = open_device(options.device)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for dtype in options.dtype or ("float32", "float16"):
            for name, conv in _layers(options):
                place = f"{name}-{dtype}-{layer_name(conv)}".replace(" ", "_")
                folder = Path(options.keep or temporary).absolute() / place
                rows.append(measure(name, conv, dtype, device, options, folder))
                _print_row(rows[-1])
    result = {
        "summary": _summary(rows),
        "rows": [asdict(row) for row in rows],
        "machine": {"device": device.key.as_dict(), "platform": platform.platform()},
    }
    for key, value in result["summary"].items():
        print(f"{key:48s} {'-' if value is None else f'{value:.2f}'}", file=sys.stderr)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
