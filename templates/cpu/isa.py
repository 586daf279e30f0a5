"""What a CPU target's vector unit offers, read from the target's features (never from CPU names)."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target import Target


@dataclass(frozen=True)
class VectorUnit:
    """`lanes`: float32 values in a register; `registers`: architectural vector registers."""

    lanes: int
    registers: int

    @property
    def accumulators(self) -> int:
        """Registers that may hold sums: what is left after the operands of a multiply-add."""
        return self.registers - (4 if self.registers > 16 else 3)


# The first feature that the target has decides. NEON's tiles read broadcasts from a lane, so few operands stay live.
_UNITS = (
    ("avx512f", VectorUnit(16, 32)),
    ("avx2", VectorUnit(8, 16)),
    ("neon", VectorUnit(4, 32)),
)
_BASELINE = VectorUnit(4, 16)  # SSE2, and anything unknown: 128 bits


def vector_unit(target: Target) -> VectorUnit:
    """The vector unit of an llvm target."""
    has = tvm.get_global_func("target.target_has_feature")
    return next((unit for feature, unit in _UNITS if has(feature, target)), _BASELINE)
