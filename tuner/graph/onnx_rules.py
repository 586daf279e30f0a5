"""Defaults that changed between ONNX's operator sets, written into the nodes: who reads them need not know the set."""

from __future__ import annotations

import onnx

_RULE = "coordinate_transformation_mode"


def opset_of(model: onnx.ModelProto) -> int:
    """The operator set of ONNX's own operators."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def write_old_rules(model: onnx.ModelProto) -> None:
    """Before operator set 16, RoiAlign had one rule for coordinates; onnx's evaluator applies the later default to
    all. In place; a node that says its rule is left alone."""
    if opset_of(model) >= 16:
        return
    for node in model.graph.node:
        if node.op_type == "RoiAlign" and all(a.name != _RULE for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute(_RULE, "output_half_pixel"))
