"""This benchmark compares 8-bit integers with float32 in ResNet-18's convolutions, on x86 CPUs with fewer instructions.

    python benchmarks/int8_convolutions.py [--mcpu haswell] [--samples 8] [--quick] [--json FILE]

Kernels are compiled for --mcpu, a name of LLVM's: haswell has AVX2 alone, skylake-avx512 AVX-512 without dot products
of integers, and cascadelake has these (the machine that runs this must have the instructions, too). For each layer and
type, the first configs and some random ones of every template are timed on one thread, and the fastest counts. The
float32 kernels end with a bias and a ReLU, those of integers with a scale, a bias, a ReLU and a quantisation. "share"
is the time of integers over that of float32: below 1 integers are faster. The last row adds up all layers of the
network. onnxruntime cannot be kept from the instructions that the machine has, so it is not compared.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from models_cpu import machine
from tvm.target import Target

from templates.epilogue import OPERANDS, operands
from templates.integers import INTEGERS, Types
from templates.lowering import build
from templates.reference import random_operands
from templates.template import AnchorTemplate, search_space, template_named
from templates.workloads import Conv2d, anchor_of
from tuning_db.record import Config, Workload

_SAME = (1, 1, 1, 1)
_EPILOGUES = {"float32": ("bias", "relu"), INTEGERS: ("real", "scale", "bias", "relu", "quantize")}
# Each distinct convolution of ResNet-18, and how often it occurs.
LAYERS = {
    "3 x 224, 7x7/2": (Conv2d(1, 3, 224, 224, 64, (7, 7), (2, 2), (3, 3, 3, 3)), 1),
    "64 x 56, 3x3": (Conv2d(1, 64, 56, 56, 64, (3, 3), padding=_SAME), 4),
    "64 x 56, 3x3/2": (Conv2d(1, 64, 56, 56, 128, (3, 3), (2, 2), _SAME), 1),
    "64 x 56, 1x1/2": (Conv2d(1, 64, 56, 56, 128, (1, 1), (2, 2)), 1),
    "128 x 28, 3x3": (Conv2d(1, 128, 28, 28, 128, (3, 3), padding=_SAME), 3),
    "128 x 28, 3x3/2": (Conv2d(1, 128, 28, 28, 256, (3, 3), (2, 2), _SAME), 1),
    "128 x 28, 1x1/2": (Conv2d(1, 128, 28, 28, 256, (1, 1), (2, 2)), 1),
    "256 x 14, 3x3": (Conv2d(1, 256, 14, 14, 256, (3, 3), padding=_SAME), 3),
    "256 x 14, 3x3/2": (Conv2d(1, 256, 14, 14, 512, (3, 3), (2, 2), _SAME), 1),
    "256 x 14, 1x1/2": (Conv2d(1, 256, 14, 14, 512, (1, 1), (2, 2)), 1),
    "512 x 7, 3x3": (Conv2d(1, 512, 7, 7, 512, (3, 3), padding=_SAME), 3),
}
_SECONDS = 0.01  # that a kernel is called for, at least
_ROUNDS = 3  # of which the fastest counts


@dataclass(frozen=True)
class Timed:
    """The fastest config of a layer, and its time."""

    seconds: float
    config: Config


def seconds(workload: Workload, target: Target, config: Config) -> float:
    """Return the time of one call of a config's kernel."""
    template = template_named(config.template)
    assert isinstance(template, AnchorTemplate)
    function = build(template.prim_func(workload, target, config), target)["main"]
    inputs, layouts = random_operands(workload, 0), template.layouts(workload, target)
    extra = []
    for step, array in zip(operands(workload.epilogue), inputs.extra, strict=True):
        blocked = OPERANDS[step].shape == "channel" and layouts.out.block
        extra.append(array.reshape(-1, layouts.out.block) if blocked else array)
    out = np.zeros(layouts.out.shape(anchor_of(workload).out_shape), Types.of(workload).out)
    weight = template.pack_weight(workload, target, config, inputs.weight)
    arrays = [layouts.data.pack(inputs.data), weight, *extra, out]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
    function(*tensors)
    rounds = []
    for _ in range(_ROUNDS):
        calls, started = 0, time.perf_counter()
        while (taken := time.perf_counter() - started) < _SECONDS:
            function(*tensors)
            calls += 1
        rounds.append(taken / calls)
    return min(rounds)


def fastest(workload: Workload, target: Target, samples: int) -> Timed:
    """Return the fastest of the first configs and of some random ones of every template."""
    space, rng = search_space(workload, target), random.Random(1)
    assert space is not None
    configs = {}
    for one in space.spaces:
        drawn = [*one.seed_configs(), *filter(None, (one.sample(rng) for _ in range(samples)))]
        configs.update({(config.template, config.key): config for config in drawn})
    timed = [Timed(seconds(workload, target, config), config) for config in configs.values()]
    return min(timed, key=lambda found: found.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mcpu", default="haswell", help="the CPU that kernels are compiled for")
    parser.add_argument("--samples", type=int, default=8, help="random configs of each template")
    parser.add_argument("--quick", action="store_true", help="one layer")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": asked.mcpu, "num-cores": 1})
    rows = []
    print("| layer | times | float32, us | template | int8, us | template | share |")
    print("|---|---|---|---|---|---|---|")
    for name, (conv, count) in list(LAYERS.items())[2:3] if asked.quick else LAYERS.items():
        both = [fastest(conv.workload(e, dtype), target, asked.samples) for dtype, e in _EPILOGUES.items()]
        times, names = [found.seconds for found in both], [found.config.template.removeprefix("cpu.") for found in both]
        rows.append({"layer": name, "count": count, "seconds": times, "templates": names})
        cells = [f"{taken * 1e6:.0f} | {template}" for taken, template in zip(times, names, strict=True)]
        print(f"| {name} | {count} | {' | '.join(cells)} | {times[1] / times[0]:.2f} |", flush=True)
    single, whole = (sum(row["count"] * row["seconds"][i] for row in rows) for i in range(2))
    print(f"| all |  | {single * 1e6:.0f} |  | {whole * 1e6:.0f} |  | {whole / single:.2f} |")
    if asked.json is not None:
        summary = {f"int8_over_float32_{asked.mcpu}": whole / single}
        asked.json.write_text(json.dumps({"summary": summary, "rows": rows, "machine": machine()}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
