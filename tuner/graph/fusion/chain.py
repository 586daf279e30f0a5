"""Follow the chain of sole readers behind an anchor, whose operations become its epilogue. Start at `Chain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm.ir import Var

from templates.workloads import Conv2d, Dense
from tuner.graph.fusion.activations import activation_behind, merge_clips
from tuner.graph.fusion.steps import AnchorStep
from tuner.graph.ir.bindings import Bindings, shape_of
from tuner.graph.ir.model import Model
from tuner.graph.ir.simplify import constant, is_call


@dataclass(frozen=True, eq=False)
class Anchor:
    """A convolution or dense layer with a constant weight, before its epilogue is known."""

    kind: Conv2d | Dense
    data: Any
    weight: np.ndarray  # float64, output channels first
    out: Var


@dataclass(eq=False)
class Chain:
    """One anchor and the bindings that are fused with it, which `follow` adds."""

    graph: Bindings
    claimed: set[int]
    anchor: Anchor
    members: list[int]
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    tokens: list[str] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.anchor.out

    def follow(self) -> None:
        while not self._activation() and self._constant():
            pass
        while self._residual() or self._activation():
            pass

    def _activation(self) -> bool:
        found = activation_behind(self.graph, self.end)
        if found is None or self.claimed.intersection(found.members):
            return False
        self.tokens.append(found.token)
        self.members.extend(found.members)
        self.end = found.out
        return True

    def _next(self) -> tuple[int, Any] | None:
        """Return the index and the value of the only binding that reads the chain's end. Return None if there is none,
        if it is fused elsewhere, or if it changes the shape."""
        user = self.graph.sole_user(self.end)
        if user is None or user in self.claimed or shape_of(self.graph.variables[user]) != shape_of(self.end):
            return None
        return user, self.graph.values[user]

    def _advance(self, user: int) -> bool:
        self.members.append(user)
        self.end = self.graph.variables[user]
        return True

    def _constant(self) -> bool:
        """Fold a constant per channel that the next operator adds, subtracts, multiplies or divides by. Return whether
        there was one."""
        following = self._next()
        if following is None or not is_call(following[1], "add", "subtract", "multiply", "divide"):
            return False
        user, call = following
        at = 0 if _is(call.args[0], self.end) else 1
        value = self._per_channel(call.args[1 - at])
        name = call.op.name.removeprefix("relax.")
        if value is None or (name == "divide" and (at == 1 or not value.all())):
            return False
        one, zero = np.ones_like(value), np.zeros_like(value)
        scale, shift = {
            "add": (one, value),
            "subtract": (one, -value) if at == 0 else (-one, value),
            "multiply": (value, zero),
            "divide": (1 / value if name == "divide" else one, zero),
        }[name]
        self.scale = scale if self.scale is None else self.scale * scale
        if self.shift is not None or name in ("add", "subtract"):
            self.shift = (zero if self.shift is None else self.shift) * scale + shift
        return self._advance(user)

    def _per_channel(self, expr: Any) -> np.ndarray | None:
        """Return a constant that broadcasts along the channels as one float64 value per channel. Return None if `expr`
        is not such a constant."""
        value = constant(expr)
        if value is None or not self._is_along_channels(value.shape):
            return None
        return np.broadcast_to(value.reshape(-1).astype(np.float64), (self.anchor.kind.out_shape[1],))

    def _is_along_channels(self, own: Sequence[int]) -> bool:
        """Tell whether a tensor of this shape broadcasts to the chain's end along the channels alone."""
        shape = shape_of(self.end)
        if shape is None or len(own) > len(shape):
            return False
        channel = 1 if isinstance(self.anchor.kind, Conv2d) else len(shape) - 1
        wide = (1,) * (len(shape) - len(own)) + tuple(own)
        return all(size == 1 for axis, size in enumerate(wide) if axis != channel)

    def _residual(self) -> bool:
        following = self._next()
        if following is None or not is_call(following[1], "add"):
            return False
        user, call = following
        other = call.args[1] if _is(call.args[0], self.end) else call.args[0]
        if shape_of(other) != shape_of(self.end) or str(other.ty.dtype) != "float32":
            return False
        self.tokens.append("add")
        self.extras.append(other)
        return self._advance(user)

    def step(self, model: Model) -> AnchorStep:
        weight, bias = self.anchor.weight, None
        if self.scale is not None:
            weight = weight * self.scale.reshape(-1, *[1] * (weight.ndim - 1))
        tokens = merge_clips(self.tokens)
        if self.shift is not None:
            tokens = ["bias", *tokens]
            bias = self.shift.astype(np.float32)
        names = [self.graph.variables[m].name for m in self.members]
        node = next((model.node_names[n] for n in names if n in model.node_names), names[0])
        return AnchorStep(
            self.anchor.kind.workload(tokens),
            node,
            self.anchor.data,
            tuple(self.extras),
            np.ascontiguousarray(weight.astype(np.float32)),
            bias,
            self.end,
        )


def _is(expr: Any, var: Var) -> bool:
    return isinstance(expr, Var) and expr.same_as(var)
