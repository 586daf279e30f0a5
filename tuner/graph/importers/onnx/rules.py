"""Rewrite nodes of older operator sets as later sets express them, so that code that reads nodes need not know the set.

Start at `write_old_rules` and `write_old_operators`.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

_RULE = "coordinate_transformation_mode"


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operator set that a model uses."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def write_old_rules(model: onnx.ModelProto) -> None:
    """Write, in place, the rule for coordinates into each RoiAlign of a set before 16, unless the node gives its rule.

    Before operator set 16, RoiAlign had only one rule, but onnx's evaluator applies the later default to all sets.
    """
    if opset_of(model) >= 16:
        return
    for node in model.graph.node:
        if node.op_type == "RoiAlign" and all(a.name != _RULE for a in node.attribute):
            node.attribute.append(helper.make_attribute(_RULE, "output_half_pixel"))


def write_old_operators(model: onnx.ModelProto) -> None:
    """Rewrite, in place, the operators that converters expect as later sets have them. This is not meant for models
    that onnx's evaluator runs, since it knows the sets."""
    opset, graph = opset_of(model), model.graph
    for node in graph.node:
        if opset < 10 and node.op_type == "Slice":
            _bounds_to_operands(node, graph)
    if opset < 7:
        _widen_slopes(model)


def _bounds_to_operands(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Turn the bounds of a slice into operands. They were attributes before operator set 10."""
    bounds = {a.name: list(a.ints) for a in node.attribute}
    bounds.setdefault("axes", list(range(len(bounds["starts"]))))
    for name in ("starts", "ends", "axes"):
        graph.initializer.append(numpy_helper.from_array(np.array(bounds[name], np.int64), f"{node.output[0]}.{name}"))
        node.input.append(graph.initializer[-1].name)
    del node.attribute[:]


def _widen_slopes(model: onnx.ModelProto) -> None:
    """Reshape the slopes of a PReLU, of which there was one for each channel before operator set 7. Since then they are
    broadcast from the last axis on."""
    users = {node.input[1]: node for node in model.graph.node if node.op_type == "PRelu"}
    if not users:
        return
    known = onnx.shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in [*known.input, *known.value_info]}
    for tensor in model.graph.initializer:
        node = users.get(tensor.name)
        if node is not None and len(tensor.dims) == 1 and tensor.dims[0] > 1:
            tensor.dims.extend([1] * (ranks.get(node.input[0], 2) - 2))
