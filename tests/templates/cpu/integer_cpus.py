"""Processors that multiply integers in different ways, and operands of the largest numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm.target import Target

from templates.reference import Operands, random_operands
from tests.templates.support import host_target
from tuning_db.record import Workload


def x86(mcpu: str, threads: int = 2) -> Target:
    return Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu, "num-cores": threads})


def arm(mcpu: str, *mattr: str) -> Target:
    options = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "num-cores": 1}
    return Target({**options, "mattr": list(mattr)} if mattr else options)


X86 = {
    "vpdpbusd 512": x86("cascadelake"),
    "vpdpbusd 256": x86("alderlake"),
    "vpmaddwd 512": x86("skylake-avx512"),
    "vpmaddwd 256": x86("haswell"),
}
# By instruction, and the processor that qemu emulates for it.
ARM = {
    "usdot": (arm("cortex-a76", "+i8mm"), "max"),
    "sdot": (arm("cortex-a76"), "cortex-a76"),
    "smull": (arm("cortex-a72"), "cortex-a72"),
}
TARGETS = {"host": host_target(), **X86, **{name: target for name, (target, _) in ARM.items()}}


def operands_of_extremes(workload: Workload) -> dict[str, Operands]:
    """Random operands, and such whose numbers all are the largest or the smallest of their types."""
    plain, rng = random_operands(workload, 5), np.random.default_rng(5)
    found = {"random": plain}
    for data, weight in ((255, -128), (255, 127), (0, -128)):
        name = f"{data} x {weight}"
        found[name] = replace(plain, data=np.full_like(plain.data, data), weight=np.full_like(plain.weight, weight))
    ends = (rng.choice([0, 255], plain.data.shape), rng.choice([-128, 127], plain.weight.shape))
    found["ends"] = replace(plain, data=ends[0].astype(np.uint8), weight=ends[1].astype(np.int8))
    return found
