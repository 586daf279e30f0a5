"""Write operators of an ONNX graph out in simpler ones, before the graph is imported. Start at `write_out`.

A rewrite is a function of a `NodeWriter` and a node. It adds nodes that compute the same, and returns the names of
their results, one for each output. It returns None if it leaves the node as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import BadInput
from tuner.graph.importers.onnx.check import EDGETUNE, describe_node
from tuner.graph.importers.onnx.control import set_nodes
from tuner.graph.importers.onnx.rules import opset_of


class Unwritable(Exception):
    """Raised for a node that can neither be written out nor be handled otherwise. The message says why."""


Shape = tuple[int, ...]
_MAX_INFERRED_BYTES = 2**31 - 1  # protobuf's limit for a message in memory


class NodeWriter:
    """Adds nodes and constants to a model's graph in place of one node. Every method takes and returns names of
    tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.opset = opset_of(model)
        self.nodes: list[onnx.NodeProto] = []
        self._values = {tensor.name: tensor for tensor in model.graph.initializer}
        self._prefix = ""
        self._count = 0

    @cached_property
    def _types(self) -> Mapping[str, onnx.TypeProto.Tensor]:
        return types_of(self.model)  # takes as long as all else for a large model, so it is inferred on demand

    @cached_property
    def _producers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output}

    def begin(self, node: onnx.NodeProto) -> None:
        """Begin with new nodes, whose names start with that of `node`."""
        self.nodes, self._prefix, self._count = [], f"{node.name or node.output[0]}/", 0

    def add(self, kind: str, *reads: str, **attributes: Any) -> str:
        """Add a node with one output, and return the output."""
        return self.add_many(kind, reads, 1, **attributes)[0]

    def add_many(self, kind: str, reads: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return these."""
        results = [self._fresh(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(reads), results, name=results[0], **attributes))
        return results

    def add_own(
        self,
        kind: str,
        reads: Sequence[str],
        shapes: Sequence[Shape],
        elem_type: int = onnx.TensorProto.FLOAT,
        **attributes: Any,
    ) -> list[str]:
        """Add a node of our domain, which a converter of ours takes, and return its results of these shapes and of this
        type."""
        results = self.add_many(kind, reads, len(shapes), domain=EDGETUNE, **attributes)
        if all(entry.domain != EDGETUNE for entry in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(EDGETUNE, 1))
        types = zip(results, shapes, strict=True)  # onnx cannot infer them
        self.model.graph.value_info.extend(
            helper.make_tensor_value_info(name, elem_type, shape) for name, shape in types
        )
        return results

    def producer(self, name: str) -> onnx.NodeProto | None:
        """Return the node of the model that makes a tensor, or None if none does: this one's new nodes do not count."""
        return self._producers.get(name)

    def constant(self, array: Any, dtype: Any = None) -> str:
        name = self._fresh("constant")
        self.model.graph.initializer.append(numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def _fresh(self, kind: str) -> str:
        self._count += 1
        return f"{self._prefix}{kind}_{self._count}"

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor, or None if one of its sizes is not known."""
        if name in self._values:
            return tuple(self._values[name].dims)
        tensor = self._types.get(name)
        if tensor is None or not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
            return None
        return tuple(int(d.dim_value) for d in tensor.shape.dim)

    def elem_type(self, name: str) -> int | None:
        """Return the TensorProto.DataType of a tensor, or None if it is not known."""
        if name in self._values:
            return int(self._values[name].data_type)
        return int(self._types[name].elem_type) if name in self._types else None

    def dtype(self, name: str) -> np.dtype[Any] | None:
        kind = self.elem_type(name)
        return helper.tensor_dtype_to_np_dtype(kind) if kind else None

    def value(self, name: str) -> np.ndarray | None:
        """Return the value of a constant, or None if the tensor is not a constant."""
        return numpy_helper.to_array(self._values[name]) if name in self._values else None

    def cast(self, x: str, kind: int) -> str:
        return self.add("Cast", x, to=kind)

    def reshape(self, x: str, shape: Iterable[int]) -> str:
        return self.add("Reshape", x, self.constant(list(shape), np.int64))

    def reduce(self, kind: str, x: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """Reduce axes. They are an operand since operator set 13 (ReduceSum) or 18 (others), an attribute before."""
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self.add(kind, x, self.constant(list(axes), np.int64), keepdims=keepdims)
        return self.add(kind, x, axes=list(axes), keepdims=keepdims)

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Split along an axis. The sizes are an operand since operator set 13, and an attribute before."""
        if len(sizes) == 1:
            return [x]
        if self.opset >= 13:
            return self.add_many("Split", [x, self.constant(list(sizes), np.int64)], len(sizes), axis=axis)
        return self.add_many("Split", [x], len(sizes), axis=axis, split=list(sizes))

    def scalar_like(self, x: str, value: float) -> str:
        """Add a constant that has the type of `x`."""
        return self.constant(value, self.dtype(x))


Rewrite = Callable[[NodeWriter, onnx.NodeProto], Sequence[str] | None]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name, with text as str."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {
        name: value.decode() if isinstance(value, bytes) else [v.decode() for v in value]
        if isinstance(value, list) and value and isinstance(value[0], bytes) else value
        for name, value in found.items()
    }  # fmt: skip


def chosen_attributes(node: onnx.NodeProto, *names: str) -> dict[str, Any]:
    """Return the attributes of a node that have one of the names."""
    return {name: value for name, value in attributes_of(node).items() if name in names}


WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")  # attributes of a convolution


def operand(node: onnx.NodeProto, index: int) -> str:
    """Return the name of an operand, or an empty string if it is left out."""
    return node.input[index] if index < len(node.input) else ""


def write_out(model: onnx.ModelProto, rewrites: Mapping[tuple[str, str], Rewrite], source: str) -> bool:
    """Replace, in place, all nodes for whose domain and operator there is a rewrite that applies. Return whether there
    was one. Raises BadInput, naming `source` and the node, if a rewrite raises Unwritable."""
    graph = model.graph
    if not any(key_of(node) in rewrites for node in graph.node):
        return False
    writer = NodeWriter(model)
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        rewrite = rewrites.get(key_of(node))
        writer.begin(node)
        try:
            results = None if rewrite is None else rewrite(writer, node)
        except Unwritable as reason:
            raise BadInput(f"{source}: {describe_node(node)}: {reason}") from None
        if results is None:
            nodes.append(node)
            continue
        changed = True
        ends = zip(results, node.output, strict=False)
        nodes += [*writer.nodes, *(helper.make_node("Identity", [r], [o], name=o) for r, o in ends if o)]
    if changed:
        set_nodes(graph, nodes)
    return changed


def key_of(node: onnx.NodeProto) -> tuple[str, str]:
    """Return the domain, which is "" for ONNX's own, and the operator of a node."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    """Return the types of all tensors, as far as onnx can infer them."""
    if model.ByteSize() < _MAX_INFERRED_BYTES:
        model = onnx.shape_inference.infer_shapes(model)
    values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
    return {v.name: v.type.tensor_type for v in values if v.type.HasField("tensor_type")}
