"""Compute exp, log, tanh, erf and sigmoid of float32 values with polynomials, which become vector code.

TVM compiles these functions for CPUs to a call of the C library for every single value. Start at `with_vector_math`.
The errors that the functions state are the largest found over all ranges of float32, in units in the last place (ulp)
of the right result; tests/templates/test_vector_math.py measures them. NaN and infinities go through as the C library
has them.

Range reduction and polynomials of exp and log are those of Moshier's Cephes library (expf, logf). The rational
functions of tanh and erf are those of the library Eigen (generic_fast_tanh_float, generic_fast_erf_float). Both are
also known to TVM as topi.fast_exp and others, which lose NaN, infinities and the ends of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from templates.bounds import bind, within
from templates.cpu.isa import has_feature

# Adding this to a small number rounds the number to an integer, which the lowest bits of the sum then hold.
_ROUND, _ROUND_BITS = 12582912.0, 0x4B400000
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127
_LEAST_NORMAL = 1.1754943508222875e-38
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4  # ln 2 is the sum of the last two
# Beyond these exp is 0 or infinite, and tanh is 1.
_LEAST_EXPONENT, _LARGEST_EXPONENT, _LARGEST_TANH = -104.5, 89.0, 9.0
_LARGEST_ERF = 3.92

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_TANH_UPPER = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_LOWER = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF_UPPER = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_LOWER = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _times_power(value: Any, exponent: Any) -> Any:
    """Return a value from 0.5 to 2 times 2 to the power of an integer from -151 to 129."""
    half = exponent >> _i32(1)  # two factors, as one alone would leave the range before the result does
    return value * _power_of_two(half) * _power_of_two(exponent - half)


def _times_power_by_one_instruction(value: Any, exponent: Any) -> Any:
    """Return what `_times_power` does. With AVX-512 this is VSCALEFPS, which takes the place of nine instructions."""
    return tirx.call_llvm_pure_intrin("float32", "llvm.ldexp", value, exponent)


def exp(x: Any, times_power: Callable[[Any, Any], Any] = _times_power) -> Any:
    """Return e to the power of x, off by at most 1 ulp; results below the normal range are right, too. `times_power`
    scales a value by a power of two."""

    def powers(x: Any) -> Any:
        return bind(x * _f32(_LOG2_E) + _f32(_ROUND), lambda rounded: rest(x, rounded))

    def rest(x: Any, rounded: Any) -> Any:
        whole = rounded - _f32(_ROUND)
        return bind(x - whole * _f32(_LN2_HIGH) - whole * _f32(_LN2_LOW), lambda r: scaled(r, rounded))

    def scaled(rest: Any, rounded: Any) -> Any:
        power = _polynomial((*_EXP, 1.0, 1.0), rest)
        return times_power(power, _bits(rounded) - _i32(_ROUND_BITS))

    return bind(_within(x, _LEAST_EXPONENT, _LARGEST_EXPONENT), powers)


def log(x: Any) -> Any:
    """Return the natural logarithm of x, off by at most 1 ulp."""

    def of(x: Any) -> Any:
        is_small = x < _f32(_LEAST_NORMAL)
        bits = _bits(tirx.Select(is_small, x * _f32(2.0**_MANTISSA_BITS), x))
        lowered = tirx.Select(is_small, _f32(-_MANTISSA_BITS), _f32(0))
        mantissa = _float((bits & _i32(0x007FFFFF)) | _i32(0x3F000000))  # 0.5 to 1
        exponent = ((bits >> _i32(_MANTISSA_BITS)) - _i32(_EXPONENT_BIAS - 1)).astype("float32") + lowered
        return bind(mantissa, lambda m: bind(exponent, lambda e: centred(x, m, e)))

    def centred(x: Any, mantissa: Any, exponent: Any) -> Any:
        below = mantissa < _f32(0.70710678)
        rest = tirx.Select(below, mantissa + mantissa, mantissa) - _f32(1)
        power = tirx.Select(below, exponent - _f32(1), exponent)
        return bind(rest, lambda r: bind(power, lambda e: ends(x, summed(r, e))))

    def summed(rest: Any, power: Any) -> Any:
        square = rest * rest
        small = _polynomial(_LOG, rest) * rest * square + power * _f32(_LN2_LOW) - _f32(0.5) * square
        return rest + small + power * _f32(_LN2_HIGH)

    def ends(x: Any, result: Any) -> Any:
        infinite, nan = tirx.const(float("inf"), "float32"), tirx.const(float("nan"), "float32")
        result = tirx.Select(x < infinite, result, x)  # infinity and NaN are their own logarithms
        return tirx.Select(x > _f32(0), result, tirx.Select(tirx.EQ(x, _f32(0)), _f32(0) - infinite, x + nan))

    return bind(x, of)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x, off by at most 5 ulp, or 6 without fused multiply-adds."""

    return _odd_ratio(x, _LARGEST_TANH, _TANH_UPPER, _TANH_LOWER)


def erf(x: Any) -> Any:
    """Return the error function of x, off by at most 6 ulp, or 9 without fused multiply-adds."""

    return _odd_ratio(x, _LARGEST_ERF, _ERF_UPPER, _ERF_LOWER)


def sigmoid(x: Any, times_power: Callable[[Any, Any], Any] = _times_power) -> Any:
    """Return 1 / (1 + exp(-x)), off by at most 3 ulp; results below the normal range are 0. `times_power` is that of
    exp."""
    return _f32(1) / (_f32(1) + exp(_f32(0) - x, times_power))


def _nearest(x: Any) -> Any:
    """Return the whole number nearest to x, the even one of two. TVM makes scalars of a vector that its own operator is
    called for, and LLVM has an instruction."""
    return tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", x)


def _functions(target: Target) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that a CPU or an OpenCL device computes, by TVM's names."""
    if target.kind.name == "opencl":
        return {"tirx.tanh": tanh, "tirx.erf": erf}
    times_power = _times_power_by_one_instruction if has_feature(target, "avx512f") else _times_power
    return {
        "tirx.exp": partial(exp, times_power=times_power),
        "tirx.log": log,
        "tirx.tanh": tanh,
        "tirx.erf": erf,
        "tirx.sigmoid": partial(sigmoid, times_power=times_power),
        "tirx.nearbyint": _nearest,
    }


def with_vector_math(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return a scheduled function for a CPU with its calls of exp, log, tanh, erf, sigmoid and nearbyint in float32
    replaced by what is above, and one for OpenCL with those of tanh and erf, for which PoCL calls the C library for
    every value. Other functions stay as they are: the devices' own versions are vectors, or as fast."""
    if target.kind.name not in ("llvm", "opencl"):
        return func
    functions = _functions(target)

    def replaced(call: Any) -> Any:
        known = functions.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        return call if known is None or str(call.ty.dtype) != "float32" else known(call.args[0])

    body = tvm_ffi.structural_map(func.body, [(tvm.ir.Call, replaced)])
    return func if body.same_as(func.body) else func.with_body(body)


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _i32(value: int) -> Any:
    return tirx.const(value, "int32")


def _bits(value: Any) -> Any:
    return tirx.reinterpret("int32", value)


def _float(bits: Any) -> Any:
    return tirx.reinterpret("float32", bits)


def _within(x: Any, least: float, largest: float) -> Any:
    """Bound x, but keep NaN."""
    return within(x, _f32(least), _f32(largest))


def _power_of_two(exponent: Any) -> Any:
    return _float((exponent + _i32(_EXPONENT_BIAS)) << _i32(_MANTISSA_BITS))


def _odd_ratio(x: Any, largest: float, upper: Sequence[float], lower: Sequence[float]) -> Any:
    """Return x times the ratio of two polynomials in its square, from -1 to 1. From `largest` on the result is 1."""

    def of(x: Any) -> Any:
        return bind(x * x, lambda s: x * (_polynomial(upper, s) / _polynomial(lower, s)))

    return _within(bind(_within(x, -largest, largest), of), -1.0, 1.0)


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial, highest power first, by Horner's rule."""
    first, *rest = coefficients
    value = _f32(first)
    for coefficient in rest:
        value = value * x + _f32(coefficient)
    return value
