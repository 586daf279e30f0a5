"""This benchmark compares our convolutions with those of oneDNN (torch, prepacked) and MetaSchedule on one CPU thread.

    python benchmarks/conv2d_cpu.py [--quick] [--json] [--set resnet18|depthwise|pointwise] [--trials 64] [--keep DIR]

Every layer, with bias and ReLU, is tuned by us and by MetaSchedule with the same number of trials. Then the best
kernels and oneDNN's take turns, each in its own process. Their weights rotate through copies that exceed the last-level
cache, because weights are cold in a network too. Ratios are the peer's seconds over ours: above 1 ours is faster.
Nothing is installed: a peer that is missing is skipped and named. MetaSchedule takes hours for all layers. With --keep
DIR the same command goes on where it was stopped, and times everything at the end (--tune-only leaves the timing out).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from templates.reference import random_operands
from templates.template import anchor_template
from templates.workloads import Conv2d
from tuner.devices import Device, last_level_cache_bytes, open_device, usable_cpus
from tuner.measure import LocalRunner, MeasureOptions
from tuner.measure.codegen.toolchain import build_shared, check_toolchain
from tuner.report.alternation import Contender, alternate
from tuner.session import Budget, Stopped, Task, TuneOptions, tune
from tuning_db.record import Config, Workload
from tuning_db.store import Store, open_db

CHILD = Path(__file__).with_name("conv2d_cpu_child.py")
EPILOGUE = ("bias", "relu")
SAME = (1, 1, 1, 1)


def _square(c: int, size: int, k: int, kernel: int, stride: int = 1, groups: int = 1) -> Conv2d:
    pad = (kernel // 2,) * 4
    return Conv2d(1, c, size, size, k, (kernel, kernel), (stride, stride), pad, groups=groups)


SETS: dict[str, list[Conv2d]] = {
    "resnet18": [
        _square(3, 224, 64, 7, 2),
        _square(64, 56, 64, 3),
        _square(64, 56, 128, 3, 2),
        _square(64, 56, 128, 1, 2),
        _square(128, 28, 128, 3),
        _square(128, 28, 256, 3, 2),
        _square(128, 28, 256, 1, 2),
        _square(256, 14, 256, 3),
        _square(256, 14, 512, 3, 2),
        _square(256, 14, 512, 1, 2),
        _square(512, 7, 512, 3),
    ],
    "depthwise": [
        _square(c, size, c, 3, stride, c)
        for c, size, stride in [
            (32, 112, 1),
            (64, 112, 2),
            (128, 56, 1),
            (128, 56, 2),
            (256, 28, 1),
            (256, 28, 2),
            (512, 14, 1),
            (512, 14, 2),
            (1024, 7, 1),
        ]
    ],
    "pointwise": [
        _square(c, size, k, 1)
        for c, size, k in [
            (32, 112, 64),
            (64, 56, 128),
            (128, 56, 128),
            (128, 28, 256),
            (256, 28, 256),
            (256, 14, 512),
            (512, 14, 512),
            (512, 7, 1024),
            (1024, 7, 1024),
        ]
    ],
}
QUICK = {"resnet18": [1, 4, 10], "depthwise": [2, 6], "pointwise": [2, 6]}


@dataclass(frozen=True)
class Row:
    """A row of the result, which holds one layer.

    Seconds are medians of the alternated blocks. A peer that was skipped has no seconds, and its rate is None.
    """

    name: str
    template: str
    gflops: float
    seconds: Mapping[str, float]
    trials_per_second: float
    metaschedule_trials_per_second: float | None
    error: float

    def ratio(self, peer: str) -> float | None:
        return self.seconds[peer] / self.seconds["ours"] if peer in self.seconds else None


def layer_name(conv: Conv2d) -> str:
    kind = "dw" if conv.is_depthwise else "conv"
    return f"{kind} {conv.in_channels}x{conv.height} -> {conv.out_channels} k{conv.kernel[0]} s{conv.strides[0]}"


def tune_layer(
    conv: Conv2d, workload: Workload, device: Device, store: Store, runner: LocalRunner, options: TuneOptions
) -> None:
    """Run a tuning session for one layer.

    An interrupt ends the benchmark, so that an incomplete session is not taken for a complete one.
    """
    report = tune([Task(workload, 1, layer_name(conv))], device, store, runner, options)
    if report.stopped is Stopped.INTERRUPTED:
        raise KeyboardInterrupt


def _tune_ours(conv: Conv2d, device: Device, trials: int, seed: int, folder: Path) -> tuple[Config, float, float]:
    """Tune a layer with our templates, unless `folder` has the result already.

    Return the best config, its error, and the trials per second of the whole session without the start of the workers.
    """
    workload, speed = conv.workload(EPILOGUE), folder / "ours.json"
    with open_db(f"{folder}/b.db") as store:
        if not speed.exists():
            with LocalRunner(device, MeasureOptions(seed=seed)) as runner:
                start = time.perf_counter()
                tune_layer(conv, workload, device, store, runner, TuneOptions(budget=Budget(trials=trials), seed=seed))
                seconds = time.perf_counter() - start
            tried = {t.config for t in store.trials(workload, device.key)}
            speed.write_text(json.dumps(len(tried) / seconds))
        best = store.best(workload, device.key)
        assert best is not None
        assert best.error is not None
        return best.config, best.error, json.loads(speed.read_text())


def files_of(
    conv: Conv2d, device: Device, config: Config, folder: Path, name: str, dtype: str = "float32"
) -> dict[str, Any]:
    """Write the library of one of our kernels and its operands in its layouts, and return its specification."""
    workload, template = conv.workload(EPILOGUE, dtype), anchor_template(config.template)
    layouts = template.layouts(workload, device.target)
    build_shared(
        template.prim_func(workload, device.target, config), device.target, folder / f"{name}.so", check_toolchain()
    )
    plain = random_operands(workload, 0)
    arrays = {
        "data": layouts.data.pack(plain.data),
        "weight": template.pack_weight(workload, device.target, config, plain.weight),
        "bias": template.pack_bias(workload, device.target, plain.extra[0]),
        "out": np.zeros(layouts.out.shape(conv.out_shape), dtype),
    }
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    return {"kind": "library", "library": str(folder / f"{name}.so"), "operands": str(folder / f"{name}.npz")}


def plain_operands(conv: Conv2d, folder: Path) -> str:
    plain = random_operands(conv.workload(EPILOGUE), 0)
    out = np.zeros(conv.out_shape, "float32")
    np.savez(
        folder / "plain.npz", allow_pickle=False, data=plain.data, weight=plain.weight, bias=plain.extra[0], out=out
    )
    return str(folder / "plain.npz")


def tune_metaschedule(
    conv: Conv2d, trials: int, folder: Path, seed: int, device: str = "cpu", helped: bool = False
) -> float | None:
    """Tune with MetaSchedule, write its best kernel to ms.so, and return trials per second, or None if it failed.

    With `helped`, its processes start sooner (metaschedule_child).
    """
    kept = folder / "ms.json"
    if kept.exists():
        return json.loads(kept.read_text())
    spec = {"conv": asdict(conv), "trials": trials, "folder": str(folder), "seed": seed, "device": device}
    spec |= {"helped": helped}
    command = [sys.executable, str(CHILD.with_name("metaschedule_child.py")), json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"  MetaSchedule failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    kept.write_text(done.stdout.strip().splitlines()[-1])
    return json.loads(kept.read_text())


def time_all(
    specs: Mapping[str, Mapping[str, Any]], folder: Path, rounds: int, child: Path = CHILD
) -> dict[str, float]:
    """Time the contenders in turns and return the median seconds per call of each."""
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(
                Contender(name, [sys.executable, str(child), json.dumps(spec)], 1, folder / f"{name}.log")
            )
            for name, spec in specs.items()
        }
        times = alternate(running, rounds, 0.1, lambda _: None)
    return {name: median(median(block) for block in blocks) for name, blocks in times.items()}


def measure(conv: Conv2d, device: Device, options: argparse.Namespace, folder: Path) -> Row | None:
    """Tune what `folder` does not have yet, then time all contenders. Return None with --tune-only."""
    folder.mkdir(parents=True, exist_ok=True)
    config, error, speed = _tune_ours(conv, device, options.trials, options.seed, folder)
    ms_speed = None if options.no_metaschedule else tune_metaschedule(conv, options.trials, folder, options.seed)
    if options.tune_only:
        return None
    common = {"cpus": usable_cpus()[-1:], "cold_bytes": 2 * last_level_cache_bytes(), "conv": asdict(conv)}
    specs: dict[str, dict[str, Any]] = {"ours": {**common, **files_of(conv, device, config, folder, "ours")}}
    plain = {**common, "operands": plain_operands(conv, folder)}
    if importlib.util.find_spec("torch"):
        specs["onednn"] = {**plain, "kind": "onednn"}
    if ms_speed is not None:
        specs["metaschedule"] = {**plain, "kind": "library", "library": str(folder / "ms.so")}
    seconds = time_all(specs, folder, options.rounds)
    gflops = conv.flop / seconds["ours"] / 1e9
    return Row(layer_name(conv), config.template, gflops, seconds, speed, ms_speed, error)


def geomean(values: Sequence[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return math.exp(sum(map(math.log, found)) / len(found)) if found else None


def _summary(rows: Mapping[str, list[Row]]) -> dict[str, float | None]:
    """Return the summary. The figures of ResNet-18 have plain names; those of the other sets have a prefix."""
    summary: dict[str, float | None] = {}
    for name, found in rows.items():
        prefix = "" if name == "resnet18" else f"{name}_"
        summary[f"{prefix}vs_onednn_geomean"] = geomean([r.ratio("onednn") for r in found])
        summary[f"{prefix}vs_metaschedule_geomean"] = geomean([r.ratio("metaschedule") for r in found])
        summary[f"{prefix}trials_per_second"] = geomean([r.trials_per_second for r in found])
        summary[f"{prefix}metaschedule_trials_per_second"] = geomean([r.metaschedule_trials_per_second for r in found])
    return summary


def _print_row(row: Row) -> None:
    def ratio(peer: str) -> str:
        value = row.ratio(peer)
        return "     -" if value is None else f"{value:5.2f}x"

    ms = row.metaschedule_trials_per_second
    print(
        f"{row.name:32s} {row.template:24s} {row.seconds['ours'] * 1e6:8.1f} us {row.gflops:6.1f} GF/s"
        f"  oneDNN {ratio('onednn')}  MetaSchedule {ratio('metaschedule')}"
        f"  {row.trials_per_second:5.1f} trials/s (MetaSchedule {'-' if ms is None else f'{ms:.2f}'})",
        file=sys.stderr,
        flush=True,
    )


def _layers(options: argparse.Namespace) -> Iterator[tuple[str, Conv2d]]:
    for name in options.set or list(SETS):
        for i, conv in enumerate(SETS[name]):
            if not options.quick or i in QUICK[name]:
                yield name, conv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few layers of each set, 16 trials")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--set", action="append", choices=list(SETS), help="only these layers (default: all sets)")
    parser.add_argument("--trials", type=int, help="per layer and tuner (default: 64)")
    parser.add_argument("--rounds", type=int, default=9, help="alternated blocks per contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-metaschedule", action="store_true", help="leave MetaSchedule out (it takes 95 %% of the time)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was tuned there, and go on from it")
    parser.add_argument("--tune-only", action="store_true", help="with --keep: tune, time nothing")
    options = parser.parse_args()
    options.trials = options.trials or (16 if options.quick else 64)
    if importlib.util.find_spec("torch") is None:
        print("oneDNN is skipped: pip install torch==2.13.0", file=sys.stderr)
    device = open_device("cpu", 1)
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, conv in _layers(options):
            folder = Path(options.keep or temporary) / f"{options.trials}" / layer_name(conv).replace(" ", "_")
            row = measure(conv, device, options, folder.absolute())
            if row is not None:
                rows.setdefault(name, []).append(row)
                _print_row(row)
    result = {
        "summary": _summary(rows),
        "rows": [{"set": name, **asdict(row)} for name, found in rows.items() for row in found],
        "machine": {"device": device.key.as_dict(), "platform": platform.platform(), "trials": options.trials},
    }
    for key, value in result["summary"].items():
        print(f"{key:40s} {'-' if value is None else f'{value:.2f}'}", file=sys.stderr)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
