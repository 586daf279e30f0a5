"""The instructions of CPUs that multiply vectors of bfloat16 numbers and sum neighbouring products, in float32.

Start at `bfloat_products_of`, which says what a target has. TVM generates no code for bfloat16. So kernels hold such
numbers as 16 bits and call small functions, written in LLVM's language, which are compiled into them (`with_code`).
x86 and ARM's instructions treat denormal numbers as zero.
"""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule, TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from templates.bfloats import BITS, as_bits
from templates.cpu.dot_products import Products
from templates.cpu.isa import has_feature
from templates.integers import Held
from templates.stages import new_schedule

_NARROWED = "edgetune_to_bfloat16"
_DOT = "edgetune_bfloat16_dot"
_WIDTHS = (4, 8, 12, 16)  # as many values are converted at once, where there are as many
_KINDS = ("float", "bfloat", "i16")
_IMPORT = "pragma_import_llvm"  # LLVM's text in the annotation of a loop is linked to the function's module


@dataclass(frozen=True)
class _Bfloats(Held):
    """Says that data and weights are held as the bits of bfloat16 numbers, in pairs of neighbouring channels."""

    data: str = BITS
    weight: str = BITS
    group: int = 2

    def conversion(self, width: int) -> str | None:
        return _converting(width) if width in _WIDTHS else None

    def packed(self, weight: np.ndarray) -> np.ndarray:
        return as_bits(weight)

    @property
    def sums(self) -> str:
        return "float32"

    def convert(self, value: Any) -> Any:
        return tirx.call_pure_extern(BITS, _NARROWED, value)

    def product(self, value: Any, tap: Any) -> Any:
        return _widened(value) * _widened(tap)


@cache
def _converting(width: int) -> str:
    """Register the intrinsic that converts so many neighbouring values, and return its name."""
    name = f"{_NARROWED}_{width}"

    @T.prim_func(s_tir=True)
    def meaning(
        values: T.Buffer((width,), "float32", offset_factor=1, scope="local"),
        bits: T.Buffer((width,), BITS, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(values[0:width])
            T.writes(bits[0:width])
            for i in T.serial(0, width):
                with T.sblock("convert"):
                    vi = T.axis.spatial(width, i)
                    bits[vi] = T.call_pure_extern(BITS, _NARROWED, values[vi])

    @T.prim_func(s_tir=True)
    def code(
        values: T.Buffer((width,), "float32", offset_factor=1, scope="local"),
        bits: T.Buffer((width,), BITS, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(values[0:width])
            T.writes(bits[0:width])
            each = values.vload([0], dtype=f"float32x{width}")
            bits[T.ramp(T.int32(0), 1, width)] = T.call_pure_extern(f"{BITS}x{width}", name, each)

    TensorIntrin.register(name, meaning, code)
    return name


def _widened(bits: Any) -> Any:
    """Return the float32 number whose first half is given."""
    return tirx.reinterpret("float32", bits.astype("uint32") << tirx.const(16, "uint32"))


def _dot_product(unit: Products, sums: Any, values: Any, weights: Any) -> Any:
    """Sum two products each, and add them to the sums."""
    return T.call_pure_extern(f"float32x{unit.lanes}", _DOT, sums, values, weights)


# ARM's instruction reads no memory. LLVM repeats values by loads that take a place among the multiplications.
_LOADED = _Bfloats(beside=lambda blocks, pixels: blocks + pixels, broadcasts=True)
_INSTRUCTIONS = (
    Products("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.{bits}", _Bfloats(), _dot_product, 16),
    Products("bf16", "llvm.aarch64.neon.bfdot.v4f32.v8bf16", _LOADED, _dot_product, 4),
)


def bfloat_products_of(target: Target) -> Products | None:
    """Return the instruction by which a target multiplies bfloat16 numbers, or None if it is no CPU or has none."""
    if target.kind.name != "llvm":
        return None
    return next((unit for unit in _INSTRUCTIONS if has_feature(target, unit.feature)), None)


def with_code(func: tirx.PrimFunc, unit: Products) -> tirx.PrimFunc:
    """Return a function with the code of what it calls: the conversion to bfloat16, and the dot product."""
    sch: Schedule = new_schedule(func)
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    sch.annotate(sch.get_loops(block)[0], _IMPORT, _code(unit))
    return sch.mod["main"]


def _code(unit: Products) -> str:
    """Return LLVM's text of the dot product, and of the conversions of one value and of as many as are neighbours."""
    name = unit.instruction.format(bits=32 * unit.lanes)
    floats, pairs, bits = f"<{unit.lanes} x float>", f"<{2 * unit.lanes} x bfloat>", f"<{2 * unit.lanes} x i16>"
    product = f"""
declare {floats} @{name}({floats}, {pairs}, {pairs})
define {floats} @{_DOT}({floats} %sums, {bits} %values, {bits} %weights) {{
  %a = bitcast {bits} %values to {pairs}
  %b = bitcast {bits} %weights to {pairs}
  %new = call {floats} @{name}({floats} %sums, {pairs} %a, {pairs} %b)
  ret {floats} %new
}}
"""
    vectors = [_conversion(f"{_NARROWED}_{n}", *(f"<{n} x {kind}>" for kind in _KINDS)) for n in _WIDTHS]
    return "".join([product, _conversion(_NARROWED, *_KINDS), *vectors])


def _conversion(name: str, wide: str, narrow: str, bits: str) -> str:
    return f"""
define {bits} @{name}({wide} %values) {{
  %near = fptrunc {wide} %values to {narrow}
  %bits = bitcast {narrow} %near to {bits}
  ret {bits} %bits
}}
"""
