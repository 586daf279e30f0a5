"""Recognise element-wise operators behind an anchor as epilogue tokens. Start at `activation_behind`.

A single operator (relu, clip, leaky ReLU ...) is mapped to its token directly. Several operators that together compute
a known function of one value (silu or hard swish, however it was written) are recognised by evaluating them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.ir import Var

from templates.epilogue import apply_numpy, np_erf, token
from tuner.graph.ir.bindings import OUTPUT, Bindings, operands
from tuner.graph.ir.simplify import is_call, scalar

_LARGEST_REGION = 16
_PROBES = np.concatenate([np.linspace(-12.0, 12.0, 481), [-80.0, -40.0, -20.0, 20.0, 40.0, 80.0]])
_COMPOSITES = (
    "silu", "hardswish", token("hardsigmoid", 1 / 6, 0.5), token("hardsigmoid", 0.2, 0.5), "gelu", "gelu_tanh", "mish",
    "softplus", token("elu", 1.0),
)  # fmt: skip


@dataclass(frozen=True)
class Activation:
    """An activation that was found in the graph. `token` computes `out` from the value before it. `members` are the
    indices of the bindings that the token replaces."""

    token: str
    out: Var
    members: tuple[int, ...]


def activation_behind(graph: Bindings, var: Var) -> Activation | None:
    """Return the activation whose operators are the only readers of a variable, or None."""
    user = graph.sole_user(var)
    text = None if user is None else _single(graph.values[user])
    if user is not None and text is not None:
        return Activation(text, graph.variables[user], (user,))
    return _composite(graph, var)


def merge_clips(tokens: list[str]) -> list[str]:
    """Return the tokens with adjacent relu and clip tokens merged into one."""
    merged: list[str] = []
    for text in tokens:
        bounds, before = _bounds(text), _bounds(merged[-1]) if merged else None
        if bounds is not None and before is not None:
            (a, b), (low, high) = before, bounds
            merged[-1] = _clip(min(max(a, low), high), min(max(b, low), high))
        else:
            merged.append(text)
    return merged


def _bounds(text: str) -> tuple[float, float] | None:
    name, *numbers = text.split(":")
    if name == "relu":
        return 0.0, math.inf
    return (float(numbers[0]), float(numbers[1])) if name == "clip" else None


def _clip(low: float, high: float) -> str:
    return "relu" if (low, high) == (0.0, math.inf) else token("clip", low, high)


def _short(number: Any) -> float:
    """Return the shortest decimal that is the same float32: attributes arrive as 0.10000000149 for 0.1."""
    return float(str(np.float32(getattr(number, "value", number))))


_SINGLE = {
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "nn.silu": "silu",
    "nn.gelu": "gelu",
    "nn.gelu_tanh": "gelu_tanh",
}


def _single(call: Any) -> str | None:
    """Return the token of a call that is one activation of one value, or None."""
    if is_call(call, "nn.relu"):
        return "relu"
    for name, text in _SINGLE.items():
        if is_call(call, name):
            return text
    if is_call(call, "nn.leakyrelu"):
        return token("leaky_relu", _short(call.attrs.alpha))
    if is_call(call, "clip"):
        return _clip(_short(call.args[1]), _short(call.args[2]))
    for name in ("maximum", "minimum"):
        if is_call(call, name):
            bound = next((c for c in map(scalar, call.args) if c is not None), None)
            if bound is not None:
                return _clip(_short(bound), math.inf) if name == "maximum" else _clip(-math.inf, _short(bound))
    return None


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "exp": np.exp,
    "negative": np.negative,
    "abs": np.abs,
    "log": np.log,
    "sqrt": np.sqrt,
    "erf": np_erf,
    "power": np.power,
    "equal": np.equal,
    "where": np.where,
}


def evaluate(call: Any, known: Mapping[Var, np.ndarray]) -> np.ndarray | None:
    """Evaluate a point-wise operator. `known` has the values of the variables that were evaluated so far.

    Return None if the operator is not point-wise or reads another variable.
    """
    text = _single(call)
    if text is not None:
        arguments = [known.get(a) for a in operands(call) if isinstance(a, Var)]
        return None if arguments[0] is None else apply_numpy([text], arguments[0], [])
    for name, function in _ARITHMETIC.items():
        if is_call(call, name):
            values = [known.get(a) if isinstance(a, Var) else scalar(a) for a in call.args]
            return None if any(v is None for v in values) else function(*values)
    return None


def _composite(graph: Bindings, start: Var) -> Activation | None:
    """Find the smallest set of operators that reads `start`, is read through a single variable, and computes a known
    function. Return None if there is none."""
    known = {start: _PROBES}
    members: list[int] = []
    while len(members) < _LARGEST_REGION:
        pending = [u for v in known for u in graph.users.get(v, []) if u not in members]
        if not pending or (at := min(pending)) == OUTPUT:
            return None
        with np.errstate(all="ignore"):
            value = evaluate(graph.values[at], known)
        if value is None:
            return None
        out = graph.variables[at]
        members.append(at)
        known[out] = value
        closed = all(u in members for v in known if not v.same_as(out) for u in graph.users.get(v, []))
        if closed:
            for text in _COMPOSITES:
                if np.allclose(value, apply_numpy([text], _PROBES, []), rtol=1e-6, atol=1e-6):
                    return Activation(text, out, tuple(members))
    return None
