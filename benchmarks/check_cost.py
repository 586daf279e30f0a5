"""This benchmark compares the seconds of checking every candidate with those of the whole measurement.

    python benchmarks/check_cost.py [--device cpu] [--configs 24] [--json]

It measures random configs of layers of ResNet-18, MobileNetV2 and VGG as a tuning run does, including builds. Checking
consists of making the operands and references, one call with operands of each kind (tuner/measure/targets/kinds.py),
the comparison with the reference, and the tests for damaged operands afterwards. It is counted for right candidates.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from models_cpu import machine

import vision_ops  # noqa: F401  (registers the built-in templates)
from templates.template import search_space
from templates.workloads import Conv2d, Dense
from tuner.devices import open_device
from tuner.measure import Candidate, LocalRunner, MeasureOptions

LAYERS = {
    "resnet 64x56": Conv2d(1, 64, 56, 56, 64, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu")),
    "resnet 256x14": Conv2d(1, 256, 14, 14, 256, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "add", "relu")),
    "resnet stem": Conv2d(1, 3, 224, 224, 64, (7, 7), (2, 2), (3, 3, 3, 3)).workload(("bias", "relu")),
    "mobilenet 1x1": Conv2d(1, 96, 56, 56, 24, (1, 1)).workload(("bias",)),
    "mobilenet depthwise": Conv2d(1, 144, 56, 56, 144, (3, 3), padding=(1, 1, 1, 1), groups=144).workload(
        ("bias", "clip:0.0:6.0")
    ),
    "vgg 256x56": Conv2d(1, 256, 56, 56, 256, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu")),
    "dense 2048": Dense(1, 2048, 1000).workload(("bias",)),
}


def main() -> None:
    """Print a line for each layer and one for all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--configs", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    device = open_device(args.device, args.threads)
    rows = {}
    for name, workload in LAYERS.items():
        space = search_space(workload, device.target)
        if space is None:
            continue
        rng = random.Random(0)
        configs = [config for _ in range(args.configs) if (config := space.sample(rng)) is not None]
        with LocalRunner(device, MeasureOptions()) as runner:
            began = time.perf_counter()
            trials = list(runner.measure([Candidate(workload, config) for config in configs]))
            wall = time.perf_counter() - began
            spent = runner.spent
        rows[name] = {
            "trials": len(trials),
            "right": sum(trial.ok for trial in trials),
            "wall_seconds": wall,
            "run_seconds": spent.run_seconds,
            "check_seconds": spent.check_seconds,
        }
        print(f"{name}: {_line(rows[name])}")
    total = {key: sum(row[key] for row in rows.values()) for key in next(iter(rows.values()))}
    print(f"all: {_line(total)}; on {machine()}")
    if args.json:
        print(json.dumps({"device": device.name, "layers": rows, "all": total}))


def _line(row: dict[str, float]) -> str:
    share = row["check_seconds"] / row["wall_seconds"]
    return (
        f"{row['trials']:.0f} trials ({row['right']:.0f} right) in {row['wall_seconds']:.1f} s, of them "
        f"{row['run_seconds']:.1f} s measuring, of them {row['check_seconds']:.2f} s checking: {share:.1%} of all"
    )


if __name__ == "__main__":
    main()
