"""The vector unit that a CPU target has. Start at `vector_unit`.

It is read from the target's features, never from names of CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target import Target


@dataclass(frozen=True)
class VectorUnit:
    """A vector unit that has `registers` architectural vector registers of `lanes` float32 values each."""

    lanes: int
    registers: int

    @property
    def accumulators(self) -> int:
        """Return how many registers may hold sums: those that the operands of a multiply-add leave free."""
        return self.registers - (4 if self.registers > 16 else 3)


# The first of these features that the target has decides. NEON multiplies by a lane of a register, so that a tile keeps
# few operands in registers.
_UNITS = (
    ("avx512f", VectorUnit(16, 32)),
    ("avx2", VectorUnit(8, 16)),
    ("neon", VectorUnit(4, 32)),
    ("zvl128b", VectorUnit(4, 32)),
)
_BASELINE = VectorUnit(4, 16)  # SSE2, WebAssembly's SIMD, and any unknown unit: 128 bits


def has_feature(target: Target, feature: str) -> bool:
    """Tell whether an llvm target has a feature of LLVM's, such as "avx512f"."""
    return bool(tvm.get_global_func("target.target_has_feature")(feature, target))


def vector_unit(target: Target) -> VectorUnit:
    """Return the vector unit of an llvm target."""
    return next((unit for feature, unit in _UNITS if has_feature(target, feature)), _BASELINE)


def threads_of(target: Target) -> int:
    """Return how many threads compute the kernels of an llvm target."""
    return int(target.attrs.get("num-cores", 1))
