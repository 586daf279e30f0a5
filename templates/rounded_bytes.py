"""Write the rounding of real numbers to uint8 with the instruction that x86 CPUs have for it. Start at
`with_rounded_bytes`.

A result is quantised by rounding, adding the zero point, bounding the sum to 0 and 255, and converting it. In float32
that takes eight of a vector's instructions, as rounding is two. Converting to int32 rounds as well: with the bounds in
integers, of which the conversion to uint8 is one, five are left.

A division by the scale takes as long as sixteen of them. A product with the inverse is off by a unit in the last place;
what it leaves, times the inverse, corrects that, so that the quotient is the one that a division rounds to. Source:
P. W. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM Journal of Research
and Development 34 (1), 1990, "Division".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from templates.bounds import bind
from templates.cpu.isa import has_feature

_LARGEST = 255
_ENOUGH = 256.0  # larger numbers become `_LARGEST` with every zero point, and int32 has this one
_SMALLEST = 2.0**-60  # of divisors
_ONES = 1 - 2.0**-24  # the fraction whose digits all are ones


def with_rounded_bytes(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return a scheduled function for a CPU that computes the same bytes, by conversions to int32 if it is x86."""
    if not has_feature(target, "sse2"):
        return func
    quotient = _quotient if has_feature(target, "fma") else _divided
    body = tvm_ffi.structural_map(func.body, [(tirx.Cast, partial(_rounded, quotient=quotient))])
    return func if body.same_as(func.body) else func.with_body(body)


def _rounded(cast: Any, quotient: Callable[[Any], Any]) -> Any:
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
    below = _at_most(_ENOUGH, quotient(value.args[0]))
    found = tirx.call_llvm_pure_intrin("int32", "llvm.lrint", below)
    if point is not None:
        found += point.astype("int32")
    return tirx.min(tirx.max(found, tirx.const(0, "int32")), tirx.const(_LARGEST, "int32")).astype("uint8")


def _at_most(most: float, value: Any) -> Any:
    return tirx.min(tirx.const(most, "float32"), value)  # the second one if either is no number


def _divided(value: Any) -> Any:
    return value


def _quotient(value: Any) -> Any:
    """Return a division by a constant as products, if that is exact where the quotient is no more than `_ENOUGH`."""
    if not isinstance(value, tirx.Div) or not isinstance(value.b, tirx.FloatImm):
        return value
    inverse = _inverse(value.b.value)
    if inverse is None:
        return value
    divisor, inverse = (tirx.const(number, "float32") for number in (value.b.value, inverse))

    def corrected(dividend: Any) -> Any:
        near = _at_most(2 * _ENOUGH, dividend * inverse)  # an infinite one would leave what is no number
        return bind(near, lambda near: _fma(_fma(_negative(near), divisor, dividend), inverse, near))

    return bind(value.a, corrected)


def _negative(value: Any) -> Any:
    return tirx.const(0, "float32") - value


def _fma(one: Any, other: Any, added: Any) -> Any:
    return tirx.call_llvm_pure_intrin("float32", "llvm.fma", one, other, added)


def _inverse(divisor: float) -> float | None:
    """Return the float32 number nearest to the inverse of one, or None if products with it are no quotients: the
    divisor's digits must not all be ones, and nothing that is left of a dividend may be too small for float32."""
    if not _SMALLEST < divisor < 1 / _SMALLEST or math.frexp(divisor)[0] == _ONES:
        return None
    exact, near = 1 / Fraction(divisor), np.float32(1 / divisor)
    ends = near, *(np.nextafter(near, np.float32(end)) for end in (0, np.inf))
    return float(min(ends, key=lambda number: abs(Fraction(float(number)) - exact)))


def _is(bound: Any, number: float) -> bool:
    return isinstance(bound, tirx.FloatImm) and str(bound.ty.dtype) == "float32" and bound.value == number


def _is_byte(point: Any) -> bool:
    """Tell whether a zero point is missing, or a whole number from 0 to 255."""
    if isinstance(point, tirx.Cast):
        return str(point.value.ty.dtype) == "uint8"
    return point is None or (isinstance(point, tirx.FloatImm) and point.value in range(_LARGEST + 1))
