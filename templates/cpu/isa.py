"""The vector unit that a CPU target has, and the types that it computes in. Start at `vector_unit` and `computes_in`.

They are read from the target's features, never from names of CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
from tvm.target import Target

from templates.bfloats import BFLOAT16


@dataclass(frozen=True)
class VectorUnit:
    """A vector unit that has `registers` architectural vector registers of `lanes` values each. The operands of
    multiply-adds take `operands` of them (0: few)."""

    lanes: int
    registers: int
    operands: int = 0

    @property
    def accumulators(self) -> int:
        """Return how many registers may hold sums: those that the operands of a multiply-add leave free."""
        return self.registers - (self.operands or (4 if self.registers > 16 else 3))

    @property
    def seeded(self) -> int:
        """Return how many registers hold sums in seed configs at most: with more of them LLVM often spills some.

        On an Ice Lake Xeon (AVX-512) the best 1x1 convolutions with 28 sums take 1.6 times as long as the best of all,
        those with 20 or 24 take 1.1 times as long (geometric means of 81 to 95 layers).
        """
        return min(self.accumulators, self.registers * 3 // 4)


# The first of these features that the target has decides. NEON multiplies by a lane of a register, so that a tile keeps
# few operands in registers.
_UNITS = (
    ("avx512f", VectorUnit(16, 32)),
    ("avx2", VectorUnit(8, 16)),
    ("neon", VectorUnit(4, 32)),
    ("zvl128b", VectorUnit(4, 32)),
)
_BASELINE = VectorUnit(4, 16)  # SSE2, WebAssembly's SIMD, and any unknown unit: 128 bits
HALF = "float16"
# The features of LLVM's by which CPUs compute in a type. ARM's vectors of halves are asimdhp to Linux.
_ARITHMETIC = {HALF: ("fullfp16",), BFLOAT16: ("avx512bf16", "bf16")}
# Only the first 16 registers can hold a half that a vector is multiplied by. With fewer operands LLVM spills sums.
_HALF_OPERANDS = 8


def has_feature(target: Target, feature: str) -> bool:
    """Tell whether an llvm target has a feature of LLVM's, such as "avx512f"."""
    return bool(tvm.get_global_func("target.target_has_feature")(feature, target))


def computes_in(target: Target, dtype: str) -> bool:
    """Tell whether a target is a CPU that multiplies and adds vectors of `dtype`. All CPUs do so with float32 and with
    integers, but few with halves or with bfloat16."""
    if target.kind.name != "llvm":
        return False
    return dtype not in _ARITHMETIC or any(has_feature(target, feature) for feature in _ARITHMETIC[dtype])


def vector_unit(target: Target, dtype: str = "float32") -> VectorUnit:
    """Return the vector unit of an llvm target, with the number of lanes that it has for values of `dtype`: of halves a
    vector has twice as many. Integers are summed in lanes of 32 bits, as many as it has of float32."""
    unit = next((unit for feature, unit in _UNITS if has_feature(target, feature)), _BASELINE)
    return replace(unit, lanes=2 * unit.lanes, operands=_HALF_OPERANDS) if dtype == HALF else unit


def threads_of(target: Target) -> int:
    """Return how many threads compute the kernels of an llvm target."""
    return int(target.attrs.get("num-cores", 1))
