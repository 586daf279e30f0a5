"""The element-wise steps that can be fused behind an anchor, as tokens: "bias", "add", "relu", "clip:0:6", ...

A token is a name and its numbers, joined by colons. "bias" adds one value per output channel and "add" a tensor of
the output's shape: each takes one more operand, in the order of the tokens. All others only change the value.
`apply` builds TVM expressions, `apply_numpy` the float64 reference; a new step is one row in `_STEPS`.
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
    """A step of an epilogue with its numbers, as `parse` reads it."""
    return ":".join([name, *(repr(float(n)) for n in numbers)])


def parse(text: str) -> tuple[str, tuple[float, ...]]:
    """Name and numbers of a token. Raises ValueError if there is no such step."""
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
    """The tokens that take an operand, in order."""
    return [t for t in epilogue if t in OPERANDS]


def apply(epilogue: Sequence[str], value: Any, reads: Sequence[Any]) -> Any:
    """The TVM expression of the epilogue over `value`; `reads` are the loaded operand values, in order."""
    left = list(reads)
    for text in epilogue:
        name, numbers = parse(text)
        value = value + left.pop(0) if name in OPERANDS else _STEPS[name].expr(value, *numbers)
    return value


def apply_numpy(epilogue: Sequence[str], value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The same over NumPy arrays; channels are axis 1, bias arrays have one value per channel."""
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
