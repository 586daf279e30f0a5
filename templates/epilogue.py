"""The element-wise operations that can be fused behind an anchor, written as tokens: "bias", "add", "relu", "clip:0:6".

A token is a name and its numbers, joined by colons. Those in `OPERANDS` take one more operand each, in the order of the
tokens: "bias" adds one value per output channel, "scale" multiplies by one, and "add" adds a tensor of the output's
shape. All others only change the value. `apply` builds TVM expressions and `apply_numpy` computes the float64
reference. A new operation is one row in `_STEPS`.

Anchors that multiply integers (`templates.integers`) have sums in int32. "offset" adds an int32 number per output
channel to them, "window" one per output pixel, and "real" converts them to float32, which all other tokens ask for.
"quantize" converts float32, in steps of the result's scale, to uint8: it rounds to the nearest integer, halves to the
even one, and adds the zero point. "border" changes no value: its operand is what the data outside
the image counts as.

A sum with another quantised tensor takes two tokens. "bytes" reads that tensor, which is uint8 and has the output's
shape, and changes no value. "add_bytes" multiplies the value, adds the bytes times a second number, and a third number.
The value may be a quantised result, which is quantised again behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from tvm import tirx

from templates.bounds import at_least, at_most, bind, within


@dataclass(frozen=True)
class OperandKind:
    """Describes the operand of a token. It has one value per output channel ("channel"), per output pixel or row
    ("pixel"), per value of the output ("image"), one in all ("single"), or the three numbers of a sum ("sum").
    `dtype` is None if it is stored as the anchor's other real values are."""

    shape: Literal["channel", "pixel", "image", "single", "sum"]
    dtype: str | None = None


OPERANDS = {
    "bias": OperandKind("channel"),
    "add": OperandKind("image"),
    "scale": OperandKind("channel", "float32"),
    "offset": OperandKind("channel", "int32"),
    "window": OperandKind("pixel", "int32"),
    "border": OperandKind("single", "uint8"),
    "quantize": OperandKind("single", "uint8"),
    "bytes": OperandKind("image", "uint8"),
    "add_bytes": OperandKind("sum", "float32"),
}

OF_SUMS = ("border", "offset", "window")  # tokens that stand where sums are int32
_OF_INTEGERS = (*OF_SUMS, "real", "quantize", "bytes", "add_bytes")


def token(name: str, *numbers: float) -> str:
    """Write an operation of an epilogue with its numbers as a token, which `parse` reads."""
    return ":".join([name, *(repr(float(n)) for n in numbers)])


def parse(text: str) -> tuple[str, tuple[float, ...]]:
    """Read a token's name and numbers. Raises ValueError if there is no such operation, or it takes other numbers."""
    name, *numbers = text.split(":")
    plain = name in OPERANDS or name == "real"
    arity = 0 if plain else _STEPS[name].numbers if name in _STEPS else -1
    if arity != len(numbers):
        known = ", ".join([*OPERANDS, "real", *_STEPS])
        raise ValueError(f"epilogue step {text!r} is not known, or has the wrong number of values (known: {known})")
    return name, tuple(map(float, numbers))


def check_order(tokens: Sequence[str], *, integers: bool) -> None:
    """Raise ValueError if a token cannot stand where it does, behind sums of integers or of real numbers."""
    names = [parse(text)[0] for text in tokens]
    if not integers:
        if found := [name for name in names if name in _OF_INTEGERS]:
            raise ValueError(f"{found[0]!r} is for integers only")
        return
    first = next((i for i, name in enumerate(names) if name not in OF_SUMS), len(names))
    if first < len(names) and names[first] != "real":
        raise ValueError(f"{names[first]!r} needs 'real' before it, which makes real numbers of the sums")
    if behind := [name for name in names[first + 1 :] if name in (*OF_SUMS, "real")]:
        raise ValueError(f"{behind[0]!r} stands before the sums are real numbers, and once")
    if "quantize" in names and names[-1] != "quantize":
        raise ValueError(f"{names[-1]!r} stands behind the last 'quantize'")
    order = [name for name in names if name in ("bytes", "add_bytes")]
    if order != ["bytes", "add_bytes"] * (len(order) // 2):
        raise ValueError("'bytes' and 'add_bytes' belong together, in this order")


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _like(x: Any, value: float) -> Any:
    """Return a constant of the type of x."""
    return tirx.const(value, x.ty.dtype)


def _sigmoid(x: Any) -> Any:
    return _f32(1) / (_f32(1) + tirx.exp(_f32(0) - x))


def _np_sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_TANH_FACTORS = math.sqrt(2 / math.pi), 0.044715  # of GELU by a hyperbolic tangent
np_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Any) -> Any:
    return x * _f32(0.5) * (_f32(1) + tirx.erf(x * _f32(math.sqrt(0.5))))


def _gelu_tanh(x: Any) -> Any:
    first, third = (_f32(v) for v in _TANH_FACTORS)
    return x * _f32(0.5) * (_f32(1) + tirx.tanh(first * (x + third * x * x * x)))


def _np_gelu_tanh(x: np.ndarray) -> np.ndarray:
    first, third = _TANH_FACTORS
    return x * 0.5 * (1 + np.tanh(first * (x + third * x**3)))


def _mish(x: Any) -> Any:
    """Return x tanh(log(1 + e)), where e is exp(x), as x e (e + 2) / (e (e + 2) + 2)."""

    def of(power: Any) -> Any:
        return bind(power * (power + _f32(2)), lambda product: x * (product / (product + _f32(2))))

    return bind(tirx.exp(at_most(x, _f32(20))), of)


def _softplus(x: Any) -> Any:
    """Return log(1 + exp(x)) as max(x, 0) + log(1 + e), where e is exp(-|x|). log(1 + e) is computed as
    e log(u) / (u - 1), where u is 1 + e after rounding, so that no digits are lost where e is small."""

    def of(power: Any) -> Any:
        return bind(power + _f32(1), lambda whole: ratio(power, whole, whole - _f32(1)))

    def ratio(power: Any, whole: Any, rest: Any) -> Any:
        return tirx.Select(tirx.EQ(rest, _f32(0)), power, power * tirx.log(whole) / rest)

    return at_least(x, _f32(0)) + bind(tirx.exp(_f32(0) - tirx.abs(x)), of)


def _elu(x: Any, factor: float) -> Any:
    return tirx.Select(x > _f32(0), x, _f32(factor) * (tirx.exp(x) - _f32(1)))


@dataclass(frozen=True)
class _Step:
    numbers: int
    expr: Callable[..., Any]
    array: Callable[..., np.ndarray]


_STEPS: dict[str, _Step] = {
    "relu": _Step(0, lambda x: at_least(x, _like(x, 0)), lambda x: np.maximum(x, 0)),
    "clip": _Step(
        2,
        lambda x, lo, hi: within(x, _like(x, lo), _like(x, hi)),
        lambda x, lo, hi: np.clip(x, lo, hi),
    ),
    "leaky_relu": _Step(
        1,
        lambda x, a: tirx.Select(x > _like(x, 0), x, x * _like(x, a)),
        lambda x, a: np.where(x > 0, x, x * a),
    ),
    "sigmoid": _Step(0, _sigmoid, _np_sigmoid),
    "silu": _Step(0, lambda x: x * _sigmoid(x), lambda x: x * _np_sigmoid(x)),
    "tanh": _Step(0, lambda x: tirx.tanh(x), lambda x: np.tanh(x)),
    "hardsigmoid": _Step(
        2,
        lambda x, a, b: within(x * _f32(a) + _f32(b), _f32(0), _f32(1)),
        lambda x, a, b: np.clip(x * a + b, 0, 1),
    ),
    "hardswish": _Step(
        0,
        lambda x: x * within(x * _f32(1 / 6) + _f32(0.5), _f32(0), _f32(1)),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    ),
    "gelu": _Step(0, _gelu, lambda x: x * 0.5 * (1 + np_erf(x * math.sqrt(0.5)))),
    "gelu_tanh": _Step(0, _gelu_tanh, _np_gelu_tanh),
    "mish": _Step(0, _mish, lambda x: x * np.tanh(np.logaddexp(0, x))),
    "softplus": _Step(0, _softplus, lambda x: np.logaddexp(0, x)),
    "elu": _Step(1, _elu, lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0)))),
}


_LARGEST_HALF = 65504.0
# These may be computed in half precision, on sums in it: they round once each, or not at all.
_IN_HALVES = frozenset({"bias", "add", "relu", "clip", "leaky_relu"})


def keeps_halves(epilogue: Sequence[str]) -> bool:
    """Tell whether an epilogue is computed in half precision on sums in half precision. Others are in float32."""
    known = [parse(text) for text in epilogue]
    return all(name in _IN_HALVES and all(abs(n) <= _LARGEST_HALF for n in numbers) for name, numbers in known)


def operands(epilogue: Sequence[str]) -> list[str]:
    """Return the tokens that take an operand, in order."""
    return [t for t in epilogue if t in OPERANDS]


def apply(epilogue: Sequence[str], value: Any, reads: Sequence[Any]) -> Any:
    """Build the TVM expression that applies an epilogue to `value`. `reads` are its operands' values, in order. That of
    a sum is a tuple of its three numbers."""
    left, is_activated, other = list(reads), False, None
    for text in epilogue:
        name, numbers = parse(text)
        if name == "bytes":
            other = left.pop(0).astype("float32")
        elif name == "add_bytes":
            value = _sum(value, other, left.pop(0))
        elif name in OPERANDS:
            value = _with_operand(name, value, left.pop(0))
        elif name == "real":
            value = value.astype("float32")
        elif is_activated:  # a step may use its value twice, and TVM takes no expression twice that binds a variable
            value = bind(value, partial(_activated, name, numbers))
        else:
            value, is_activated = _STEPS[name].expr(value, *numbers), True
    return value


def _activated(name: str, numbers: Sequence[float], value: Any) -> Any:
    return _STEPS[name].expr(value, *numbers)


def _sum(value: Any, other: Any, numbers: Sequence[Any]) -> Any:
    """Add two tensors, as expressions or as arrays. Each product and the sum behind it may be rounded once or twice."""
    own, factor, constant = numbers
    return value * own + (other * factor + constant)


def _with_operand(name: str, value: Any, read: Any) -> Any:
    if name == "quantize":
        steps = tirx.nearbyint(value) + read.astype("float32")
        return tirx.min(tirx.max(steps, _f32(0)), _f32(255))  # what is no number becomes 0
    if name == "border":
        return value
    return value * read if name == "scale" else value + read


def apply_numpy(epilogue: Sequence[str], value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Apply an epilogue to NumPy arrays. Channels are axis 1, and the arrays of operands have one value per channel,
    per pixel, per value or in all, as `OPERANDS` says."""
    left, other = list(arrays), np.zeros(0)
    for text in epilogue:
        name, numbers = parse(text)
        if name == "bytes":
            other = left.pop(0)
        elif name == "add_bytes":
            value = np.asarray(_sum(value, other, tuple(left.pop(0))))
        elif name in OPERANDS:
            value = _with_array(name, value, left.pop(0))
        elif name != "real":
            value = _STEPS[name].array(value, *numbers)
    return value


def _with_array(name: str, value: np.ndarray, array: np.ndarray) -> np.ndarray:
    if name == "border":
        return value
    if name == "quantize":
        return np.asarray(np.clip(np.rint(value) + array[0], 0, 255))
    if OPERANDS[name].shape == "channel":
        array = array.reshape(1, -1, *[1] * (value.ndim - 2))
    elif OPERANDS[name].shape == "pixel":
        array = np.expand_dims(array, 1)
    return value * array if name == "scale" else value + array
