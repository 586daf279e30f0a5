"""Widen the floating-point types of an ONNX file. Start at `widen_halves`; `widen_singles` is for references.

Weights, constants and everything that nodes compute get the wider type. The inputs and outputs keep the file's type: a
Cast follows each input and comes before each output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, numpy_helper

from tuner.graph.importers.onnx.check import graph_inputs, graphs_of
from tuner.graph.importers.onnx.control import rename, set_nodes

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# These attributes give the type of a result or of a computation.
_TYPES = ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type", "to")


def widen_halves(model: onnx.ModelProto) -> bool:
    """Let everything between inputs and outputs be computed in float32, in place. Return whether there are halves.

    Values that the file rounds to halves on their way are not rounded here.
    """
    return _Widening(_HALVES, TensorProto.FLOAT).widened(model)


def widen_singles(model: onnx.ModelProto) -> bool:
    """Let everything between inputs and outputs be computed in float64, in place. Return whether there are singles."""
    return _Widening((TensorProto.FLOAT,), TensorProto.DOUBLE).widened(model)


def _cast(source: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], name=result, to=kind)


@dataclass(frozen=True)
class _Widening:
    """Replaces the types `narrow` of a model by the type `wide`."""

    narrow: tuple[int, ...]
    wide: int

    def widened(self, model: onnx.ModelProto) -> bool:
        """Change the model, and return whether there was something to change."""
        graph = model.graph
        if not any(self._concerns(inner) for inner in graphs_of(graph)):
            return False
        names, entering, leaving = self._borders(graph)
        for node in graph.node:
            rename(node, names)
        for inner in graphs_of(graph):
            self._widen(inner, names if inner is graph else {})
        for value in graph.value_info:
            value.name = names.get(value.name, value.name)
        set_nodes(graph, [*entering, *graph.node, *leaving])
        return True

    def _borders(self, graph: onnx.GraphProto) -> tuple[dict[str, str], list[onnx.NodeProto], list[onnx.NodeProto]]:
        """Return the names that inputs and outputs get inside the graph, the casts of the inputs, and those of the
        outputs."""
        names: dict[str, str] = {}
        entering, leaving = [], []
        for value in graph_inputs(graph):
            if value.type.tensor_type.elem_type in self.narrow:
                names[value.name] = f"{value.name}/wide"
                entering.append(_cast(value.name, names[value.name], self.wide))
        for value in graph.output:
            kind = value.type.tensor_type.elem_type
            if kind in self.narrow:
                is_input = value.name in names
                inside = names.setdefault(value.name, f"{value.name}/wide")
                leaving += [] if is_input else [_cast(inside, value.name, kind)]
        return names, entering, leaving

    def _concerns(self, graph: onnx.GraphProto) -> bool:
        values = [*graph.input, *graph.output, *graph.value_info]
        return (
            any(value.type.tensor_type.elem_type in self.narrow for value in values)
            or any(tensor.data_type in self.narrow for tensor in graph.initializer)
            or any(self._is_said(attribute) for node in graph.node for attribute in node.attribute)
        )

    def _is_said(self, attribute: onnx.AttributeProto) -> bool:
        return attribute.t.data_type in self.narrow or (attribute.name in _TYPES and attribute.i in self.narrow)

    def _widen(self, graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
        """Change all types in a graph but those of the inputs and outputs in `names`."""
        for value in graph.value_info:
            self._widen_type(value)
        for value in [*graph.input, *graph.output]:
            if value.name not in names:
                self._widen_type(value)
        for tensor in graph.initializer:
            self._widen_tensor(tensor)
            tensor.name = names.get(tensor.name, tensor.name)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.t.data_type in self.narrow:
                    self._widen_tensor(attribute.t)
                elif self._is_said(attribute):
                    attribute.i = self.wide

    def _widen_type(self, value: onnx.ValueInfoProto) -> None:
        if value.type.tensor_type.elem_type in self.narrow:
            value.type.tensor_type.elem_type = self.wide

    def _widen_tensor(self, tensor: onnx.TensorProto) -> None:
        if tensor.data_type in self.narrow:
            kind = helper.tensor_dtype_to_np_dtype(self.wide)
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))
