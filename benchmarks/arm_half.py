"""This benchmark estimates how much faster ARM's cores multiply and add halves than float32 values, by llvm-mca.

    python benchmarks/arm_half.py [--quick] [--json] [--cpu neoverse-n1 ...] [--samples 12] [--mca llvm-mca-19]

Nothing is run. For each layer and each type, the first configs and some random ones are compiled for the core. llvm-mca
simulates the hot loop of each in the core's model, as if all data lay in the first cache, and the config with the most
multiply-adds per cycle counts. A row also says what is left of it once sums of halves have been widened to float32,
whose code stands around the loop. LLVM has models of Neoverse N1 and V1 from version 17 on: `apt-get install llvm-19`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mca import cycles, drawn, find_mca
from tvm.target import Target

from templates.cpu.isa import vector_unit
from templates.lowering import build
from templates.template import template_named
from templates.workloads import Conv2d, Dense
from tuner.errors import BadInput
from tuner.report.hot_loop import Loop, in_assembly
from tuning_db.record import Config, Workload

_SAME = (1, 1, 1, 1)
LAYERS: dict[str, tuple[str, Conv2d | Dense]] = {
    "3x3": ("cpu.conv2d_direct", Conv2d(1, 64, 48, 48, 64, (3, 3), padding=_SAME)),
    "1x1": ("cpu.conv2d_direct", Conv2d(1, 256, 48, 48, 128, (1, 1))),
    "first 7x7": ("cpu.conv2d_direct_nchw", Conv2d(1, 3, 96, 96, 64, (7, 7), (2, 2), (3, 3, 3, 3))),
    "3x3, Winograd F(2)": ("cpu.conv2d_winograd", Conv2d(1, 256, 24, 24, 64, (3, 3), padding=_SAME)),
    "depthwise 3x3": ("cpu.depthwise", Conv2d(1, 64, 56, 56, 64, (3, 3), padding=_SAME, groups=64)),
    "3x3, groups of 2": ("cpu.conv2d_by_group", Conv2d(1, 64, 56, 56, 64, (3, 3), padding=_SAME, groups=32)),
    "dense, 48 rows": ("cpu.dense", Dense(48, 768, 768)),
}
CPUS = ("neoverse-n1", "neoverse-v1")
_HALVES = "+fullfp16"
_JUMP = re.compile(r"^\s+(?:b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s+([.\w$]+)\s*$")


@dataclass(frozen=True)
class Estimate:
    """The estimate for a config: multiply-adds of single values in a cycle of the hot loop, the same with the widening
    of sums, and how many vectors the loop stores to the stack."""

    config: dict[str, Any]
    rate: float
    widened_rate: float
    spills: int


def _widening(lines: Sequence[str], loop: Loop) -> list[str]:
    """Return the lines of the smallest loop around the hot one that widens halves, without the hot one."""
    labels = {line.partition(":")[0]: i for i, line in enumerate(lines) if re.match(r"[.\w$]+:", line)}
    jumps = [(labels[jump[1]], i) for i, line in enumerate(lines) if (jump := _JUMP.match(line)) and jump[1] in labels]
    around = [(i - first, first, i) for first, i in jumps if first < loop.first and loop.last < i]
    for _, first, last in sorted(around):
        rest = [*lines[first : loop.first], *lines[loop.last + 1 : last + 1]]
        if any("fcvtl" in line for line in rest):
            return rest
    return []


def _terms(workload: Workload, config: Config, lanes: int) -> int:
    """Return how many products are summed in halves before the sum is widened."""
    if config.template == "cpu.dense":
        return int(config["sums"])
    per_row = 1 if config.template == "cpu.conv2d_winograd" else workload.attrs["kernel"][1]
    return int(config["sums"]) * per_row * min(lanes, workload.attrs["in_channels"])


def estimate(mca: str, cpu: str, workload: Workload, config: Config) -> Estimate | None:
    """Return the estimate for a config, or None if its code has no loop with multiply-adds of vectors."""
    target = target_of(cpu)
    text = build(template_named(config.template).prim_func(workload, target, config), target).inspect_source("asm")
    lines, loop = text.splitlines(), in_assembly(text)
    if loop is None:
        return None
    body, lanes = lines[loop.first : loop.last + 1], vector_unit(target, workload.dtype).lanes
    vectors = sum(bool(re.search(rf"\sfmla\s+v\d+\.{lanes}[sh],", line)) for line in body)
    if not vectors:
        return None
    taken = cycles(mca, cpu, body, _HALVES)
    rate = widened = lanes * vectors / taken
    if config.knobs.get("sums", 0):
        rest = _widening(lines, loop)
        if not rest:
            return None  # the hot loop is that of the last, narrower tiles
        sums = sum(bool(re.search(r"\sfcvtl\s", line)) for line in rest)
        adds = sums * _terms(workload, config, lanes)  # of vectors, for one widening
        widened = lanes * adds / (adds / vectors * taken + cycles(mca, cpu, rest, _HALVES))
    return Estimate(dict(config.knobs), rate, widened, (loop.stack_stores or 0) + (loop.stack_loads or 0))


def target_of(cpu: str) -> Target:
    options = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu, "mattr": ["+neon"], "num-cores": 1}
    return Target(options)


def best(mca: str, cpu: str, name: str, dtype: str, samples: int) -> Estimate:
    """Return the estimate of the fastest of a layer's configs."""
    template, anchor = LAYERS[name]
    workload = anchor.workload(("bias", "relu"), dtype)
    space = template_named(template).space(workload, target_of(cpu))
    assert space is not None
    configs = drawn(space, samples)
    found = [made for config in configs if (made := estimate(mca, cpu, workload, config)) is not None]
    return max(found, key=lambda made: made.widened_rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one layer, one core")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--cpu", action="append", help="LLVM's name of a core (default: Neoverse N1 and V1)")
    parser.add_argument("--samples", type=int, default=12, help="random configs of each layer, besides the first ones")
    parser.add_argument("--mca", help="the command of llvm-mca")
    options = parser.parse_args()
    try:
        mca = find_mca(options.mca)
    except BadInput as missing:
        print(f"arm_half: {missing}", file=sys.stderr)
        return 2
    layers, cpus = list(LAYERS)[: 1 if options.quick else None], options.cpu or CPUS[: 1 if options.quick else None]
    rows = []
    for cpu in cpus:
        for name in layers:
            single, half = (best(mca, cpu, name, dtype, options.samples) for dtype in ("float32", "float16"))
            rows.append({"cpu": cpu, "layer": name, "float32": asdict(single), "float16": asdict(half)})
            print(f"{cpu} {name}: {single.rate:.2f} {half.rate:.2f} {half.widened_rate:.2f}", file=sys.stderr)
    if options.json:
        print(json.dumps({"mca": mca, "rows": rows}))
        return 0
    print("Estimates by llvm-mca: multiply-adds per cycle of the hot loop, and with the widening of sums of halves.\n")
    print("| core | layer | float32 | float16 | ratio | widened | ratio |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        single, half = row["float32"]["rate"], row["float16"]
        ratios = [half["rate"] / single, half["widened_rate"] / single]
        cells = [f"{single:.1f}", f"{half['rate']:.1f}", f"{ratios[0]:.2f}", f"{half['widened_rate']:.1f}"]
        print(f"| {row['cpu']} | {row['layer']} | {' | '.join(cells)} | {ratios[1]:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
