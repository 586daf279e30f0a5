"""The element-wise operations that can be fused behind an anchor, written as tokens: "bias", "add", "relu", "clip:0:6".

A token is a name and its numbers, joined by colons. "bias" adds one value per output channel, and "add" adds a tensor
of the output's shape. Both take one more operand, in the order of the tokens; all others only change the value.
`apply` builds TVM expressions and `apply_numpy` computes the float64 reference. A new operation is one row in `_STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from templates.bounds import at_least, within

OPERANDS = ("bias", "add")


def token(name: str, *numbers: float) -> str:
    """Write an operation of an epilogue with its numbers as a token, which `parse` reads."""
    return ":".join([name, *(repr(float(n)) for n in numbers)])


def parse(text: str) -> tuple[str, tuple[float, ...]]:
    """Read a token's name and numbers. Raises ValueError if there is no such operation, or it takes other numbers."""
    name, *numbers = text.split(":")
    arity = 0 if name in OPERANDS else _STEPS[name].numbers if name in _STEPS else -1
    if arity != len(numbers):
        known = ", ".join([*OPERANDS, *_STEPS])
        raise ValueError(f"epilogue step {text!r} is not known, or has the wrong number of values (known: {known})")
    return name, tuple(map(float, numbers))


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _sigmoid(x: Any) -> Any:
    return _f32(1) / (_f32(1) + tirx.exp(_f32(0) - x))


def _np_sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class _Step:
    numbers: int
    expr: Callable[..., Any]
    array: Callable[..., np.ndarray]


_STEPS: dict[str, _Step] = {
    "relu": _Step(0, lambda x: at_least(x, _f32(0)), lambda x: np.maximum(x, 0)),
    "clip": _Step(
        2,
        lambda x, lo, hi: within(x, _f32(lo), _f32(hi)),
        lambda x, lo, hi: np.clip(x, lo, hi),
    ),
    "leaky_relu": _Step(
        1,
        lambda x, a: tirx.Select(x > _f32(0), x, x * _f32(a)),
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
}


def operands(epilogue: Sequence[str]) -> list[str]:
    """Return the tokens that take an operand, in order."""
    return [t for t in epilogue if t in OPERANDS]


def apply(epilogue: Sequence[str], value: Any, reads: Sequence[Any]) -> Any:
    """Build the TVM expression that applies an epilogue to `value`. `reads` are its operands' values, in order."""
    left = list(reads)
    for text in epilogue:
        name, numbers = parse(text)
        value = value + left.pop(0) if name in OPERANDS else _STEPS[name].expr(value, *numbers)
    return value


def apply_numpy(epilogue: Sequence[str], value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Apply an epilogue to NumPy arrays. Channels are axis 1, and bias arrays have one value per channel."""
    left = list(arrays)
    for text in epilogue:
        name, numbers = parse(text)
        if name == "bias":
            value = value + left.pop(0).reshape(1, -1, *[1] * (value.ndim - 2))
        elif name == "add":
            value = value + left.pop(0)
        else:
            value = _STEPS[name].array(value, *numbers)
    return value
