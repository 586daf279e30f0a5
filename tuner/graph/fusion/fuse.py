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
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from tvm.ir import Var
from tvm.target import Target

from templates.workloads import Conv2d, Dense
from tuner.activity import activity
from tuner.graph.fusion.byte_moves import with_moved_bytes
from tuner.graph.fusion.byte_products import byte_product
from tuner.graph.fusion.chain import Anchor, Chain
from tuner.graph.fusion.integers import (
    fits,
    integer_steps,
    keeps_four_bits,
    multiplies_integers,
    multiplies_pairs,
)
from tuner.graph.fusion.steps import FusedGraph, OperatorStep, PlainStep, Step, alive_steps, reads_of
from tuner.graph.fusion.tables import tables_of
from tuner.graph.ir.bindings import Bindings, dtype_of, shape_of
from tuner.graph.ir.four_bits import dequantised_products
from tuner.graph.ir.integers import REALS, exact_parts, integer_product
from tuner.graph.ir.model import Model
from tuner.graph.ir.operators import operator_of
from tuner.graph.ir.simplify import constant, is_call


@activity("fusing operators")
def fuse(model: Model, *, integers: bool = False, pairs: bool = False, four_bits: bool = True) -> FusedGraph:
    """Find the anchors of a model and fuse their epilogues. If `integers`, products of 8-bit integers become anchors
    that multiply integers, which only some devices have kernels for; otherwise they are computed in float32. With
    `pairs` so do products of two computed matrices of bytes. Without `four_bits` matrices of 4-bit numbers become
    float32 at once, as devices ask that have no kernels for them."""
    if not four_bits:
        model = replace(model, module=dequantised_products(model.module))
    module = exact_parts(with_moved_bytes(model.module), fits) if integers else exact_parts(model.module)
    model = replace(model, module=module)
    graph = Bindings.of(module["main"])
    claimed: set[int] = set()
    steps: dict[int, Sequence[Step]] = {}
    for i in reversed(range(len(graph.values))):
        product = integer_product(graph.values[i], graph.value_of) if integers else None
        anchor = _anchor_at(graph, i, REALS if product is not None else ("float32",))
        if anchor is None:
            continue
        found = None
        if product is not None and fits(product):
            found = integer_steps(graph, claimed, product, anchor, model)
        if found is None and dtype_of(anchor.out) == "float32":
            found = _float_steps(graph, claimed, anchor, model)
        if found is not None:
            claimed.update(found[0])
            steps[max(found[0])] = found[1]
    read = [expr for found in steps.values() for step in found for expr in reads_of(step)]
    tables = tables_of(graph, claimed, read) if integers else {}
    for i, (var, value) in enumerate(zip(graph.variables, graph.values, strict=True)):
        if i not in claimed:
            step = _step(model.node_names.get(var.name, var.name), tables.get(i, value), var)
            steps[i] = (byte_product(graph, step) if pairs else None) or [step]
    ordered = [step for i in sorted(steps) for step in steps[i]]
    return FusedGraph(model, alive_steps(ordered, graph.outputs), graph.outputs)


def fuse_for(model: Model, targets: Sequence[Target], *, integers: bool = True) -> FusedGraph:
    """Fuse a model as what is built for these targets computes it. Without `integers` it multiplies none."""
    return fuse(
        model,
        integers=integers and multiplies_integers(targets),
        pairs=integers and multiplies_pairs(targets),
        four_bits=keeps_four_bits(targets),
    )


def _float_steps(graph: Bindings, claimed: set[int], anchor: Anchor, model: Model) -> tuple[list[int], list[Step]]:
    """Return the bindings that an anchor takes in, and its step."""
    chain = Chain(graph, claimed, anchor, [graph.index[anchor.out]])
    chain.follow()
    return chain.members, [chain.step(model)]


def _step(node: str, value: Any, out: Var) -> Step:
    operator = operator_of(value)
    return (
        PlainStep(node, value, out) if operator is None else OperatorStep(operator.workload, node, operator.inputs, out)
    )


def _anchor_at(graph: Bindings, i: int, dtypes: Sequence[str]) -> Anchor | None:
    """Return binding `i` as a convolution or dense layer. Return None if it is neither, if its weight is not constant,
    if its shapes are not static, or if it is not in one of the types `dtypes`."""
    call = graph.values[i]
    if not is_call(call, "nn.conv2d", "matmul"):
        return None
    weight, shape = constant(call.args[1]), shape_of(call.args[0])
    if weight is None or shape is None or dtype_of(call.args[0]) not in dtypes or weight.dtype.name not in dtypes:
        return None
    weight = weight.astype(np.float64)
    if is_call(call, "matmul"):
        if len(shape) < 2 or weight.ndim != 2:
            return None
        return Anchor(Dense(prod(shape[:-1]), *weight.shape), call.args[0], weight.T, graph.variables[i])
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
    return Anchor(conv, data, weight, graph.variables[i])


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
