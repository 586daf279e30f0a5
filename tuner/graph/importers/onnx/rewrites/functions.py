"""Some ONNX operators are defined by the specification as functions of simpler ones. Their bodies are written in their
place. Start at `write_body`.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.inliner
from onnx import TensorProto, helper

from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, Rewrite

# TVM's importer lacks these operators, or understands them differently from ONNX.
_DEFINED = (
    "Attention", "BlackmanWindow", "CausalConvWithState", "Celu", "CenterCropPad", "GroupNormalization",
    "HammingWindow", "HannWindow", "LinearAttention", "NegativeLogLikelihoodLoss", "RMSNormalization",
    "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "SwiGLU", "Swish",
)  # fmt: skip


def write_body(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write the operator's body as the specification gives it for the types of its operands and the operator set."""
    kinds = [writer.elem_type(name) if name else TensorProto.UNDEFINED for name in node.input]
    if None in kinds:
        return None
    function = _function(writer, node, [int(kind or 0) for kind in kinds])
    if function is None:
        return None
    body = _inlined(function, node, onnx.defs.get_schema(node.op_type, writer.opset))
    names = {name: name for name in node.input}
    for inner in body.node:
        reads = [names.get(name, name) for name in inner.input]
        results = writer.add_many(inner.op_type, reads, len(inner.output), domain=inner.domain)
        writer.nodes[-1].attribute.extend(inner.attribute)
        names.update(zip(inner.output, results, strict=True))
    return [names.get(name, "") for name in node.output]


def _function(writer: NodeWriter, node: onnx.NodeProto, kinds: Sequence[int]) -> onnx.FunctionProto | None:
    schema = onnx.defs.get_schema(node.op_type, writer.opset)
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        types = []
        for name, kind in zip(node.input, kinds, strict=True):
            shape = writer.shape(name)
            types.append(helper.make_tensor_type_proto(kind, shape) if kind else onnx.TypeProto())
        serialized = [t.SerializeToString() for t in types]
        function.ParseFromString(schema.get_context_dependent_function(node.SerializeToString(), serialized))
    elif schema.has_function:
        function.CopyFrom(schema.function_body)
    return function if function.node else None


def _inlined(function: onnx.FunctionProto, node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> onnx.GraphProto:
    """Return the function's nodes with the operands and the attributes of the node, or the attributes' defaults. onnx
    inlines functions of a model, so the function is put into one."""
    call = onnx.NodeProto.FromString(node.SerializeToString())
    call.domain = function.domain = "edgetune.body"
    call.op_type = function.name
    own = {attribute.name for attribute in function.attribute_proto} | set(function.attribute)
    given = {attribute.name for attribute in call.attribute}
    kept = [attribute for attribute in call.attribute if attribute.name in own]
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    kept += [value for name, value in defaults.items() if name in own - given]
    del call.attribute[:]
    call.attribute.extend(kept)
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    opsets = [*function.opset_import, helper.make_opsetid("edgetune.body", 1)]
    model = helper.make_model(
        helper.make_graph([call], "body", inputs, outputs), functions=[function], opset_imports=opsets
    )
    return onnx.inliner.inline_local_functions(model).graph


FUNCTIONS: dict[tuple[str, str], Rewrite] = {("", name): write_body for name in _DEFINED}
