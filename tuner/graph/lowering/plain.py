"""Emit Relax operators in plain layout. `emit_plain` emits plain steps, `emit_plain_anchor` anchors without a template.

Both compute in float32, whatever type the values are stored in, except for operators that round nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from templates.epilogue import parse
from templates.workloads import Conv2d, anchor_of
from tuner.graph.fusion.half import is_exact
from tuner.graph.fusion.steps import AnchorStep, PlainStep
from tuner.graph.ir.bindings import dtype_of, with_leaves
from tuner.graph.lowering.emit import Emitter, Forms


def emit_plain(emitter: Emitter, forms: Forms, step: PlainStep) -> Any:
    """Emit a step on the plain forms of its operands. Returns the result's variable, of the type of `step.out`."""
    value = forms.plain(step.value)
    if not is_exact(step.value):
        value = with_leaves(value, lambda leaf: emitter.typed(leaf, "float32"))
    result = emitter.builder.emit(value)
    return emitter.typed(result, dtype_of(step.out))


def emit_plain_anchor(emitter: Emitter, step: AnchorStep, data: Any, extras: Sequence[Any]) -> Any:
    """Emit the anchor and its epilogue; `data` and `extras` are plain. Returns the result's variable."""
    anchor, weight = anchor_of(step.workload), step.weight.astype(np.float32)
    data = emitter.typed(data, "float32")
    if isinstance(anchor, Conv2d):
        value = relax.op.nn.conv2d(
            data,
            emitter.constant(weight),
            strides=anchor.strides,
            padding=anchor.padding,
            dilation=anchor.dilation,
            groups=anchor.groups,
        )
    else:
        value = relax.op.matmul(data, emitter.constant(np.ascontiguousarray(weight.T)))
    left = [emitter.typed(extra, "float32") for extra in extras]
    for text in step.workload.epilogue:
        value = emitter.builder.emit(value)
        if text == "bias":
            assert step.bias is not None
            bias = step.bias.astype(np.float32).reshape(1, -1, *[1] * (weight.ndim - 2))
            value = relax.op.add(value, emitter.constant(bias))
        elif text == "add":
            value = relax.op.add(value, left.pop(0))
        else:
            value = _activation(text, value)
    return emitter.typed(emitter.builder.emit(value), step.workload.dtype)


def _activation(text: str, value: Any) -> Any:
    name, numbers = parse(text)

    def f32(number: float) -> Any:
        return relax.const(number, "float32")

    def clip(expr: Any, low: float, high: float) -> Any:
        return relax.op.clip(expr, relax.prim_value(low), relax.prim_value(high))

    if name == "clip":
        return clip(value, *numbers)
    if name == "leaky_relu":
        return relax.op.nn.leakyrelu(value, numbers[0])
    if name == "hardsigmoid":
        return clip(relax.op.add(relax.op.multiply(value, f32(numbers[0])), f32(numbers[1])), 0.0, 1.0)
    if name == "hardswish":
        gate = clip(relax.op.add(relax.op.multiply(value, f32(1 / 6)), f32(0.5)), 0.0, 1.0)
        return relax.op.multiply(value, gate)
    if name in ("softplus", "mish"):
        power = relax.op.exp(relax.op.negative(relax.op.abs(value)))
        log = relax.op.add(relax.op.nn.relu(value), relax.op.log(relax.op.add(power, f32(1.0))))
        return log if name == "softplus" else relax.op.multiply(value, relax.op.tanh(log))
    if name == "elu":
        below = relax.op.multiply(relax.op.subtract(relax.op.exp(value), f32(1.0)), f32(numbers[0]))
        return relax.op.where(relax.op.greater(value, f32(0.0)), value, below)
    operator = {
        "gelu": relax.op.nn.gelu,
        "gelu_tanh": relax.op.nn.gelu_tanh,
        "relu": relax.op.nn.relu,
        "sigmoid": relax.op.sigmoid,
        "silu": relax.op.nn.silu,
        "tanh": relax.op.tanh,
    }[name]
    return operator(value)
