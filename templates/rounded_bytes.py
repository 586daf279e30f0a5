"""Write the rounding of real numbers to uint8 with the instruction that x86 CPUs have for it. Start at
`with_rounded_bytes`.

A result is quantised by rounding, adding the zero point, bounding the sum to 0 and 255, and converting it. In float32
that takes eight of a vector's instructions, as rounding is two. Converting to int32 rounds as well: with the bounds in
integers, of which the conversion to uint8 is one, five are left.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from templates.cpu.isa import has_feature

_LARGEST = 255
_ENOUGH = 256.0  # larger numbers become `_LARGEST` with every zero point, and int32 has this one


def with_rounded_bytes(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return a scheduled function for a CPU that computes the same bytes, by conversions to int32 if it is x86."""
    if not has_feature(target, "sse2"):
        return func
    body = tvm_ffi.structural_map(func.body, [(tirx.Cast, _rounded)])
    return func if body.same_as(func.body) else func.with_body(body)


def _rounded(cast: Any) -> Any:
    """Return the conversion of min(max(nearbyint(value) + point, 0), 255) to uint8 with all but `value` in integers, if
    the point is a byte. What is no number becomes 0: its conversion to int32 is the lowest number."""
    most = cast.value
    if str(cast.ty.dtype) != "uint8" or not isinstance(most, tirx.Min) or not _is(most.b, _LARGEST):
        return cast
    least = most.a
    if not isinstance(least, tirx.Max) or not _is(least.b, 0):
        return cast
    steps = least.a
    value, point = (steps.a, steps.b) if isinstance(steps, tirx.Add) else (steps, None)
    if not isinstance(value, tvm.ir.Call) or value.op.name != "tirx.nearbyint" or not _is_byte(point):
        return cast
    below = tirx.min(tirx.const(_ENOUGH, "float32"), value.args[0])  # the second one if either is no number
    found = tirx.call_llvm_pure_intrin("int32", "llvm.lrint", below)
    if point is not None:
        found += point.astype("int32")
    return tirx.min(tirx.max(found, tirx.const(0, "int32")), tirx.const(_LARGEST, "int32")).astype("uint8")


def _is(bound: Any, number: float) -> bool:
    return isinstance(bound, tirx.FloatImm) and str(bound.ty.dtype) == "float32" and bound.value == number


def _is_byte(point: Any) -> bool:
    """Tell whether a zero point is missing, or a whole number from 0 to 255."""
    if isinstance(point, tirx.Cast):
        return str(point.value.ty.dtype) == "uint8"
    return point is None or (isinstance(point, tirx.FloatImm) and point.value in range(_LARGEST + 1))
