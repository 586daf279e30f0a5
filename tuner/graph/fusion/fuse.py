"""Turn a model into steps. Start at `fuse`.

A step is an anchor (convolution or dense layer) with the element-wise operators that are fused behind it, an operator
of another template, or a plain Relax binding.

From an anchor, `fuse` follows the chain of sole readers. Constants per channel right behind the anchor are folded into
weight and bias (in float64). Then residual additions and activations become tokens of templates.epilogue. Anchors are
taken from last to first: if two anchors meet in an addition, the later one computes it. All other bindings stay as
they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm.ir import IRModule, Var

from templates.workloads import Conv2d, Dense
from tuner.graph.fusion.activations import activation_behind, merge_clips
from tuner.graph.ir.bindings import Bindings, operands, shape_of
from tuner.graph.ir.model import Model
from tuner.graph.ir.operators import operator_of
from tuner.graph.ir.simplify import constant, is_call
from tuning_db.record import Workload


@dataclass(frozen=True, eq=False)
class AnchorStep:
    """A step that computes `out` = epilogue(anchor(`data`, `weight`)).

    `extras` are the operands of the "add" tokens, in order. `bias` is given if the epilogue has the token "bias". The
    weight is OIHW or (out, in), the bias is (channels,), and both have the workload's dtype. All axes of a dense
    layer's tensors but the last count as rows.
    """

    workload: Workload
    node: str
    data: Any
    extras: tuple[Any, ...]
    weight: np.ndarray
    bias: np.ndarray | None
    out: Var


@dataclass(frozen=True, eq=False)
class OperatorStep:
    """A step that computes an operator (templates/operator.py) of `inputs`. `out` is a tuple if the operator has
    several outputs."""

    workload: Workload
    node: str
    inputs: tuple[Any, ...]
    out: Var


@dataclass(frozen=True, eq=False)
class PlainStep:
    """A Relax binding that no template computes."""

    node: str
    value: Any
    out: Var


TunedStep = AnchorStep | OperatorStep  # computed by a template
Step = TunedStep | PlainStep


def reads_of(step: Step) -> list[Var]:
    """Return the variables that a step reads. A variable that is read several times is listed as often."""
    if isinstance(step, AnchorStep):
        reads = [step.data, *step.extras]
    else:
        reads = operands(step.value) if isinstance(step, PlainStep) else list(step.inputs)
    return [r for r in reads if isinstance(r, Var)]


@dataclass(frozen=True, eq=False)
class FusedGraph:
    """The steps of a model in an order that can be executed, and the expressions that are its results. `dtype` is the
    type that activations and weights are stored in between steps (see `half.halved`)."""

    model: Model
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    dtype: str = "float32"

    @property
    def anchors(self) -> tuple[AnchorStep, ...]:
        """Return the convolutions and dense layers, in order."""
        return tuple(s for s in self.steps if isinstance(s, AnchorStep))

    @property
    def tuned(self) -> tuple[TunedStep, ...]:
        """Return the steps that a template computes, which are anchors and other operators, in order."""
        return tuple(s for s in self.steps if isinstance(s, TunedStep))

    @property
    def parameters(self) -> tuple[Var, ...]:
        """Return the inputs of the main function, in order."""
        return tuple(self.model.module["main"].params)

    @property
    def module(self) -> IRModule:
        """Return the module whose functions plain steps may call."""
        return self.model.module


def fuse(model: Model) -> FusedGraph:
    """Find the anchors of a model and fuse their epilogues."""
    graph = Bindings.of(model.module["main"])
    claimed: set[int] = set()
    steps: dict[int, Step] = {}
    for i in reversed(range(len(graph.values))):
        anchor = _anchor_at(graph, i)
        if anchor is not None:
            chain = _Chain(graph, claimed, anchor, [i])
            chain.follow()
            claimed.update(chain.members)
            steps[max(chain.members)] = chain.step(model)
    for i, (var, value) in enumerate(zip(graph.variables, graph.values, strict=True)):
        if i not in claimed:
            steps[i] = _step(model.node_names.get(var.name, var.name), value, var)
    return FusedGraph(model, alive_steps([steps[i] for i in sorted(steps)], graph.outputs), graph.outputs)


def _step(node: str, value: Any, out: Var) -> Step:
    operator = operator_of(value)
    return (
        PlainStep(node, value, out) if operator is None else OperatorStep(operator.workload, node, operator.inputs, out)
    )


def alive_steps(steps: Sequence[Step], outputs: tuple[Any, ...]) -> tuple[Step, ...]:
    """Return the steps that the outputs depend on. A Pad that became a convolution's padding is dropped here."""
    needed = {o for o in outputs if isinstance(o, Var)}
    alive = []
    for step in reversed(steps):
        if step.out in needed:
            alive.append(step)
            needed.update(reads_of(step))
    return tuple(reversed(alive))


@dataclass(frozen=True, eq=False)
class _Anchor:
    kind: Conv2d | Dense
    data: Any
    weight: np.ndarray  # float64, output channels first
    out: Var


def _anchor_at(graph: Bindings, i: int) -> _Anchor | None:
    """Return binding `i` as a convolution or dense layer. Return None if it is neither, if its weight is not constant,
    if its shapes are not static, or if it is not in float32."""
    call = graph.values[i]
    if not is_call(call, "nn.conv2d", "matmul"):
        return None
    weight, shape = constant(call.args[1]), shape_of(call.args[0])
    if weight is None or shape is None or str(call.args[0].ty.dtype) != "float32" or weight.dtype != np.float32:
        return None
    weight = weight.astype(np.float64)
    if is_call(call, "matmul"):
        if len(shape) < 2 or weight.ndim != 2:
            return None
        return _Anchor(Dense(prod(shape[:-1]), *weight.shape), call.args[0], weight.T, graph.variables[i])
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
        return None
    data, padding = _without_pad(graph, call.args[0], tuple(int(p) for p in attrs.padding))
    shape = shape_of(data)
    assert shape is not None
    batch, channels, height, width = shape
    conv = Conv2d(
        batch,
        channels,
        height,
        width,
        out_channels=weight.shape[0],
        kernel=(weight.shape[2], weight.shape[3]),
        strides=_pair(attrs.strides),
        padding=padding,
        dilation=_pair(attrs.dilation),
        groups=int(attrs.groups),
    )
    return _Anchor(conv, data, weight, graph.variables[i])


def _pair(values: Any) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _without_pad(graph: Bindings, data: Any, padding: tuple[int, ...]) -> tuple[Any, tuple[int, int, int, int]]:
    """Merge a zero padding of height and width before a convolution into the convolution's own. Return the data before
    the padding, and the padding (top, left, bottom, right)."""
    top, left, bottom, right = padding
    pad = graph.value_of(data)
    if is_call(pad, "nn.pad") and pad.attrs.pad_mode == "constant" and pad.attrs.pad_value == 0:
        width = [int(w) for w in pad.attrs.pad_width]
        if len(width) == 8 and not any(width[:4]) and min(width) >= 0:
            data = pad.args[0]
            top, bottom, left, right = top + width[4], bottom + width[5], left + width[6], right + width[7]
    return data, (top, left, bottom, right)


@dataclass(eq=False)
class _Chain:
    """One anchor and the bindings that are fused with it, which `follow` adds."""

    graph: Bindings
    claimed: set[int]
    anchor: _Anchor
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
        value, shape = constant(expr), shape_of(self.end)
        if value is None or shape is None or value.ndim > len(shape):
            return None
        channel = 1 if isinstance(self.anchor.kind, Conv2d) else len(shape) - 1
        wide = (1,) * (len(shape) - value.ndim) + value.shape
        if any(size != 1 for axis, size in enumerate(wide) if axis != channel):
            return None
        return np.broadcast_to(value.reshape(-1).astype(np.float64), (shape[channel],))

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
