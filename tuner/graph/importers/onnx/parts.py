"""Make models of the parts of an ONNX model that compute single tensors. Start at `Parts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper

from tuner.graph.importers.onnx.check import describe_node, read_onnx
from tuner.graph.importers.onnx.rewrites.writer import types_of
from tuner.graph.importers.onnx.shapes import bind_shapes


class Parts:
    """An ONNX file that can be taken apart. `tensors` has the first result of each node whose type onnx can infer, in
    the order of the nodes."""

    def __init__(
        self, path: Path, *, shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
    ) -> None:
        """Read a file and give its free axes sizes, as `load_onnx` does. Raises BadInput."""
        self._model, _ = read_onnx(path)
        bind_shapes(self._model, str(path), shapes or {}, batch)
        self._types = types_of(self._model)
        self._makers = {name: node for node in self._model.graph.node for name in node.output if name}
        firsts = (node.output[0] for node in self._model.graph.node)
        self.tensors = [name for name in firsts if name in self._types and self._types[name].elem_type]

    def node_of(self, tensor: str) -> str:
        """Describe the node that computes a tensor, as messages name it."""
        return describe_node(self._makers[tensor])

    def read_by(self, tensor: str) -> list[str]:
        """Return those of `tensors` that the node of a tensor reads."""
        reads = set(_reads(self._makers[tensor]))
        return [name for name in self.tensors if name in reads]

    def behind(self, tensor: str) -> set[str]:
        """Return all tensors that a tensor is computed from, and the tensor itself."""
        found: set[str] = set()
        waiting = [tensor]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += _reads(self._makers[name]) if name in self._makers else []
        return found

    def model(self, tensor: str) -> onnx.ModelProto:
        """Return the model that computes a tensor alone, from those inputs that it needs."""
        needed, graph = self.behind(tensor), self._model.graph
        value = helper.make_tensor_value_info(tensor, self._types[tensor].elem_type, None)
        if self._types[tensor].HasField("shape"):
            value.type.tensor_type.CopyFrom(self._types[tensor])
        part = helper.make_graph(
            [node for node in graph.node if needed & set(node.output)],
            graph.name,
            [i for i in graph.input if i.name in needed],
            [value],
            [w for w in graph.initializer if w.name in needed],
        )
        model = helper.make_model(part, opset_imports=self._model.opset_import)
        model.ir_version = self._model.ir_version
        return model


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node reads, and of those that graphs in it read from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            own = {v.name for v in inner.input} | {t.name for t in inner.initializer}
            own |= {name for child in inner.node for name in child.output}
            read = [*(name for child in inner.node for name in _reads(child)), *(v.name for v in inner.output)]
            yield from (name for name in read if name not in own)
