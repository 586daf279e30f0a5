"""This benchmark estimates how much faster CPUs multiply bfloat16 numbers than float32 ones, by llvm-mca.

    python benchmarks/bfloat16.py [--quick] [--json] [--cpu neoverse-n2 ...] [--samples 4] [--mca llvm-mca-19]

Nothing is run. For each layer and each type, the first configs and some random ones are compiled for the core. llvm-mca
simulates the hot loop of each in the core's model, as if all data lay in the first cache, and the config with the most
multiply-adds per cycle counts. The conversion of the data to bfloat16 is outside of the loop and not counted. Both
types are computed directly: Winograd's algorithm, which 3x3 convolutions have in float32 alone, needs fewer
multiplications.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

from mca import cycles, drawn, find_mca
from tvm.target import Target

from templates.cpu.isa import vector_unit
from templates.lowering import build
from templates.template import template_named
from templates.workloads import Conv2d, Dense
from tuner.errors import BadInput
from tuner.report.hot_loop import in_assembly
from tuning_db.record import Config, Workload

_SAME = (1, 1, 1, 1)
LAYERS: dict[str, tuple[str, Conv2d | Dense]] = {
    "3x3": ("conv2d_{}", Conv2d(1, 64, 48, 48, 64, (3, 3), padding=_SAME)),
    "1x1": ("conv2d_{}", Conv2d(1, 256, 48, 48, 128, (1, 1))),
    "first 7x7": ("conv2d_{}_nchw", Conv2d(1, 3, 96, 96, 64, (7, 7), (2, 2), (3, 3, 3, 3))),
    "dense, 48 rows": ("dense_{}", Dense(48, 768, 768)),
}
CPUS = dict.fromkeys(("neoverse-n2", "neoverse-v1"), "aarch64") | dict.fromkeys(
    ("cooperlake", "sapphirerapids", "znver4"), "x86_64"
)
_DTYPES = ("float32", "bfloat16")
# Instructions that multiply and add whole vectors, and how many products of one lane they add.
_ADDS = ((re.compile(r"\sfmla\s+v\d+\.4s,|\svfmadd\d+ps\s.*%zmm"), 1), (re.compile(r"\sbfdot\s|\svdpbf16ps\s"), 2))


@dataclass(frozen=True)
class Estimate:
    """The estimate for a config: multiply-adds of single values in a cycle of the hot loop, and how many vectors the
    loop moves to and from the stack."""

    config: dict[str, Any]
    rate: float
    spills: int


def target_of(cpu: str) -> Target:
    """Return the target of a core, with one thread."""
    return Target({"kind": "llvm", "mtriple": f"{CPUS[cpu]}-linux-gnu", "mcpu": cpu, "num-cores": 1})


def estimate(mca: str, cpu: str, workload: Workload, config: Config) -> Estimate | None:
    """Return the estimate for a config, or None if its code has no loop with multiply-adds of whole vectors."""
    target = target_of(cpu)
    text = build(template_named(config.template).prim_func(workload, target, config), target).inspect_source("asm")
    loop = in_assembly(text)
    if loop is None:
        return None
    body = text.splitlines()[loop.first : loop.last + 1]
    adds = sum(products * sum(bool(kind.search(line)) for line in body) for kind, products in _ADDS)
    if not adds:
        return None
    features = "+bf16,+fullfp16" if CPUS[cpu] == "aarch64" else "+avx512bf16"
    rate = vector_unit(target).lanes * adds / cycles(mca, cpu, body, features, CPUS[cpu])
    return Estimate(dict(config.knobs), rate, (loop.stack_stores or 0) + (loop.stack_loads or 0))


def best(mca: str, cpu: str, name: str, dtype: str, samples: int) -> Estimate:
    """Return the estimate of the fastest of a layer's configs."""
    form, anchor = LAYERS[name]
    template = f"cpu.{form}".format("direct" if dtype == "float32" else dtype).replace("dense_direct", "dense")
    workload = anchor.workload(("bias", "relu"), dtype)
    space = template_named(template).space(workload, target_of(cpu))
    assert space is not None
    configs = drawn(space, samples)
    found = [made for config in configs if (made := estimate(mca, cpu, workload, config)) is not None]
    return max(found, key=lambda made: made.rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one layer, one core")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--cpu", action="append", choices=CPUS, help="LLVM's name of a core (default: all)")
    parser.add_argument("--samples", type=int, default=4, help="random configs of each layer, besides the first ones")
    parser.add_argument("--mca", help="the command of llvm-mca")
    options = parser.parse_args()
    try:
        mca = find_mca(options.mca)
    except BadInput as missing:
        print(f"bfloat16: {missing}", file=sys.stderr)
        return 2
    layers, cpus = (
        list(LAYERS)[: 1 if options.quick else None],
        options.cpu or list(CPUS)[: 1 if options.quick else None],
    )
    rows = []
    for cpu in cpus:
        for name in layers:
            found = {dtype: best(mca, cpu, name, dtype, options.samples) for dtype in _DTYPES}
            rows.append({"cpu": cpu, "layer": name, **{dtype: asdict(made) for dtype, made in found.items()}})
            print(f"{cpu} {name}: {', '.join(f'{made.rate:.2f}' for made in found.values())}", file=sys.stderr)
    if options.json:
        print(json.dumps({"mca": mca, "rows": rows}))
        return 0
    print("Estimates by llvm-mca: multiply-adds per cycle of the hot loop.\n")
    print("| core | layer | float32 | bfloat16 | ratio | spills |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        rates = [row[dtype]["rate"] for dtype in _DTYPES]
        cells = [*(f"{rate:.1f}" for rate in rates), f"{rates[1] / rates[0]:.2f}", str(row["bfloat16"]["spills"])]
        print(f"| {row['cpu']} | {row['layer']} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
