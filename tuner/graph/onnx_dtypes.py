"""Halves (float16, bfloat16) of an ONNX file as float32: weights, constants and whatever nodes compute, with a Cast
behind each input and before each output, which keep the file's type. Start at `widen_halves`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tuner.graph.onnx_check import graph_inputs
from tuner.graph.onnx_control import rename

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that say a type of what is computed.
_TYPES = ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type", "to")


def widen_halves(model: onnx.ModelProto) -> bool:
    """Let everything between inputs and outputs be computed in float32, in place; return whether there are halves.

    What is rounded to a half on the way in the file is not rounded here.
    """
    graph = model.graph
    if not any(_has_halves(inner) for inner in _graphs(graph)):
        return False
    entering, leaving, names = [], [], {}
    for value in graph_inputs(graph):
        if value.type.tensor_type.elem_type in _HALVES:
            names[value.name] = f"{value.name}/wide"
            entering.append(_cast(value.name, names[value.name], TensorProto.FLOAT))
    for value in graph.output:
        kind = value.type.tensor_type.elem_type
        if kind in _HALVES:
            wide = names.setdefault(value.name, f"{value.name}/wide")
            if all(value.name not in node.input[:1] for node in entering):
                leaving.append(_cast(wide, value.name, kind))
    for node in graph.node:
        rename(node, names)
    for inner in _graphs(graph):
        _widen(inner, names if inner is graph else {})
    for value in graph.value_info:
        value.name = names.get(value.name, value.name)
    nodes = [*entering, *(onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node), *leaving]
    del graph.node[:]
    graph.node.extend(nodes)
    return True


def _cast(source: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], name=result, to=kind)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all that are in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _graphs(inner)


def _has_halves(graph: onnx.GraphProto) -> bool:
    values = [*graph.input, *graph.output, *graph.value_info]
    return (
        any(value.type.tensor_type.elem_type in _HALVES for value in values)
        or any(tensor.data_type in _HALVES for tensor in graph.initializer)
        or any(_says_half(attribute) for node in graph.node for attribute in node.attribute)
    )


def _says_half(attribute: onnx.AttributeProto) -> bool:
    return attribute.t.data_type in _HALVES or (attribute.name in _TYPES and attribute.i in _HALVES)


def _widen(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Make float32 of all types in a graph but those of the inputs and outputs in `names`."""
    for value in [*graph.input, *graph.output, *graph.value_info]:
        outside = value.name in names and not any(value is inner for inner in graph.value_info)
        if value.type.tensor_type.elem_type in _HALVES and not outside:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _widen_tensor(tensor)
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.t.data_type in _HALVES:
                _widen_tensor(attribute.t)
            elif _says_half(attribute):
                attribute.i = TensorProto.FLOAT


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _HALVES:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
