"""This benchmark estimates how much faster ARM's cores multiply integers of 8 bits than float32 values, by llvm-mca.

    python benchmarks/arm_int8.py [--quick] [--json] [--samples 8] [--mca llvm-mca-19]

Nothing is run. For each layer, core and type, the first configs and some random ones are compiled for the core.
llvm-mca simulates the hot loop of each in a model of the core, as if all data lay in the first cache, and the config
with the most multiply-adds per cycle counts; for Winograd's algorithm these are the multiply-adds of the direct one
that it stands for, and its transforms are left out. The ratio is the rate of integers over that of the direct float32
kernel: above 1 integers are faster. "Winograd" has the rate of the fastest float32 one, which integers have to beat.
LLVM has no models of Cortex-A72 and Cortex-A76: those of A57 and of Neoverse N1, which resemble them, stand in.
`apt-get install llvm-19` installs llvm-mca.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

from mca import cycles, find_mca
from tvm.target import Target

from templates.integers import INTEGERS
from templates.lowering import build
from templates.template import template_named
from templates.workloads import Conv2d, Dense
from tuner.errors import BadInput
from tuner.report.hot_loop import in_assembly
from tuning_db.record import Config, Workload

_SAME = (1, 1, 1, 1)
_FINISHED = ("real", "scale", "bias", "relu", "quantize")
LAYERS: dict[str, Conv2d | Dense] = {
    "3x3": Conv2d(1, 64, 56, 56, 64, (3, 3), padding=_SAME),
    "1x1": Conv2d(1, 256, 28, 28, 128, (1, 1)),
    "dense, 48 rows": Dense(48, 768, 768),
}
# By the name of a core: its features for LLVM beside those of the core that kernels are compiled for, llvm-mca's model,
# and the instruction.
CORES = {
    "cortex-a53": ("cortex-a53", [], "cortex-a53"),
    "cortex-a72": ("cortex-a72", [], "cortex-a57"),
    "cortex-a55": ("cortex-a55", [], "cortex-a55"),
    "cortex-a76": ("cortex-a76", [], "neoverse-n1"),
    "neoverse-n1": ("neoverse-n1", [], "neoverse-n1"),
    "neoverse-v1": ("neoverse-v1", [], "neoverse-v1"),
}
# Multiply-adds of single values in an instruction.
_PRODUCTS = {"fmla": 4, "smull": 8, "sdot": 16, "usdot": 16}


@dataclass(frozen=True)
class Estimate:
    """The estimate for a config: multiply-adds of the direct algorithm in a cycle of the hot loop, and how many vectors
    the loop moves to or from the stack."""

    template: str
    knobs: dict[str, Any]
    rate: float
    spilled: int


def target_of(core: str) -> Target:
    mcpu, features, _ = CORES[core]
    options = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "num-cores": 1}
    return Target({**options, "mattr": ["+neon", *features]})


def estimate(mca: str, core: str, workload: Workload, config: Config) -> Estimate | None:
    """Return the estimate for a config, or None if its code has no loop with multiply-adds of vectors."""
    target = target_of(core)
    text = build(template_named(config.template).prim_func(workload, target, config), target).inspect_source("asm")
    loop = in_assembly(text)
    if loop is None:
        return None
    body = text.splitlines()[loop.first : loop.last + 1]
    products = sum(size for line in body for name, size in _PRODUCTS.items() if re.match(rf"\s+{name}\s+v", line))
    if not products:
        return None
    taken = cycles(mca, CORES[core][2], body, "+v8.6a")
    saved = 9 * config["m"] ** 2 / (config["m"] + 2) ** 2 if "m" in config.knobs else 1
    spilled = (loop.stack_stores or 0) + (loop.stack_loads or 0)
    return Estimate(config.template, dict(config.knobs), products * saved / taken, spilled)


def best(mca: str, core: str, template: str, workload: Workload, samples: int) -> Estimate | None:
    """Return the estimate of the fastest of a template's configs, or None if it does not apply."""
    space = template_named(template).space(workload, target_of(core))
    if space is None:
        return None
    rng = random.Random(1)
    configs = [*space.seed_configs()[:4], *filter(None, (space.sample(rng) for _ in range(samples)))]
    unique = {config.key: config for config in configs}.values()
    found = [made for config in unique if (made := estimate(mca, core, workload, config)) is not None]
    return max(found, key=lambda made: made.rate, default=None)


def row_of(mca: str, core: str, layer: str, samples: int) -> dict[str, Any]:
    """Return a row of the table."""
    anchor = LAYERS[layer]
    single, whole = anchor.workload(("bias", "relu")), anchor.workload(_FINISHED, INTEGERS)
    names = (
        ("cpu.dense", "cpu.dense_integer") if isinstance(anchor, Dense) else ("cpu.conv2d_direct", "cpu.conv2d_integer")
    )
    winograd = None if isinstance(anchor, Dense) else best(mca, core, "cpu.conv2d_winograd", single, samples)
    floats, integers = best(mca, core, names[0], single, samples), best(mca, core, names[1], whole, samples)
    assert floats is not None
    assert integers is not None
    fastest = max(found.rate for found in (floats, winograd) if found is not None)
    return {
        "core": core,
        "layer": layer,
        "float32": asdict(floats),
        "winograd": asdict(winograd) if winograd is not None else None,
        "int8": asdict(integers),
        "ratio": integers.rate / floats.rate,
        "over_the_fastest": integers.rate / fastest,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one layer, one core")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--samples", type=int, default=8, help="random configs of each layer, besides the first ones")
    parser.add_argument("--mca", help="the command of llvm-mca")
    asked = parser.parse_args()
    try:
        mca = find_mca(asked.mca)
    except BadInput as missing:
        print(f"arm_int8: {missing}", file=sys.stderr)
        return 2
    cores, layers = (["neoverse-n1"], ["1x1"]) if asked.quick else (list(CORES), list(LAYERS))
    rows = [row_of(mca, core, layer, asked.samples) for core in cores for layer in layers]
    if asked.json:
        print(json.dumps({"mca": mca, "rows": rows}))
        return 0
    print("Estimates by llvm-mca: multiply-adds in a cycle of the hot loop, nothing was run.\n")
    print("| core | layer | float32, direct | float32, Winograd | int8 | ratio | ratio to the faster | spilled |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        winograd = f"{row['winograd']['rate']:.1f}" if row["winograd"] else ""
        print(
            f"| {row['core']} | {row['layer']} | {row['float32']['rate']:.1f} | {winograd} | {row['int8']['rate']:.1f} "
            f"| {row['ratio']:.2f} | {row['over_the_fastest']:.2f} | {row['int8']['spilled']} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
