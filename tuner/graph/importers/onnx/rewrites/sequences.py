"""Resolve sequences of tensors in an ONNX graph. If positions are constants, it is known which tensors a sequence
consists of. Start at `resolve_sequences`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tuner.graph.importers.onnx.control import set_nodes
from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, attributes_of, operand

_MAKERS = ("SequenceConstruct", "SequenceEmpty", "SplitToSequence")
_READERS = ("ConcatFromSequence", "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength")
RESOLVED = (*_MAKERS, *_READERS)


def resolve_sequences(model: onnx.ModelProto) -> bool:
    """Replace, in place, nodes that read sequences whose parts are known by nodes that read the parts. Return whether
    there was something to replace."""
    graph = model.graph
    if not any(node.op_type in RESOLVED for node in graph.node):
        return False
    resolver = _Resolver(model)
    nodes = [new for node in graph.node for new in resolver.resolved(node)]
    if not resolver.changed:
        return False
    read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    set_nodes(graph, [node for node in nodes if node.op_type not in _MAKERS or read & set(node.output)])
    return True


class _Resolver:
    """Knows which tensors each sequence consists of, by the name of the sequence."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._writer = NodeWriter(model)
        self._parts: dict[str, list[str]] = {}
        self.changed = False

    def resolved(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that take the place of one."""
        self._writer.begin(node)
        kind = node.op_type
        if kind in _MAKERS:
            parts = self._made(node)
            if parts is None:
                return [node]
            self._parts[node.output[0]] = parts
            return [*self._writer.nodes, node]
        known = self._parts.get(operand(node, 0))
        if known is None:
            return [node]
        if kind == "Identity":
            self._parts[node.output[0]] = known
            return [node]
        result = self._read(node, known) if kind in _READERS else None
        if result is None:
            return [node]
        self.changed = True
        if isinstance(result, list):
            self._parts[node.output[0]] = result
            return [helper.make_node("SequenceConstruct", result, [node.output[0]], name=node.output[0])]
        return [*self._writer.nodes, helper.make_node("Identity", [result], [node.output[0]], name=node.output[0])]

    def _made(self, node: onnx.NodeProto) -> list[str] | None:
        """Return the parts of the sequence that a node makes, or None if their number is not known."""
        if node.op_type == "SequenceConstruct":
            return list(node.input)
        if node.op_type == "SequenceEmpty":
            return []
        writer, attrs, x = self._writer, attributes_of(node), node.input[0]
        shape = writer.shape(x)
        given = writer.value(operand(node, 1)) if operand(node, 1) else np.array(1)
        if shape is None or given is None:
            return None
        axis = attrs.get("axis", 0) % len(shape)
        if given.ndim:
            sizes = [int(size) for size in given]
        else:
            step = int(given)
            sizes = [min(step, shape[axis] - at) for at in range(0, shape[axis], step)]
        parts = writer.split(x, axis, sizes)
        if operand(node, 1) or attrs.get("keepdims", 1):
            return parts
        return [writer.reshape(part, [*shape[:axis], *shape[axis + 1 :]]) for part in parts]

    def _read(self, node: onnx.NodeProto, parts: list[str]) -> list[str] | str | None:
        """Return the parts of the sequence, or the tensor, that a node makes of a sequence. Return None if they are not
        known."""
        writer, kind = self._writer, node.op_type
        if kind == "SequenceLength":
            return writer.constant(len(parts), np.int64)
        if kind == "ConcatFromSequence":
            return self._joined(node, parts)
        at = self._place(operand(node, 2 if kind == "SequenceInsert" else 1), len(parts), kind)
        if at is None:
            return None
        if kind == "SequenceAt":
            return parts[at]
        if kind == "SequenceErase":
            return [part for i, part in enumerate(parts) if i != at]
        return [*parts[:at], node.input[1], *parts[at:]]

    def _place(self, name: str, count: int, kind: str) -> int | None:
        """Return the index that an operand gives, or None if it is not a constant. Without an operand, the index is
        behind the last part (to insert) or that of the last part (to erase)."""
        if not name:
            return count if kind == "SequenceInsert" else count - 1
        value = self._writer.value(name)
        if value is None:
            return None
        at = int(value.reshape(-1)[0])
        return at + count if at < 0 else at

    def _joined(self, node: onnx.NodeProto, parts: Sequence[str]) -> str | None:
        """Concatenate all parts along an axis, which may be new. Return None if a shape that is needed is not known."""
        writer, attrs = self._writer, attributes_of(node)
        axis = attrs["axis"]
        if not attrs.get("new_axis", 0):
            return writer.add("Concat", *parts, axis=axis)
        shape = writer.shape(parts[0])
        if shape is None:
            return None
        axis %= len(shape) + 1
        rows = [writer.reshape(part, [*shape[:axis], 1, *shape[axis:]]) for part in parts]
        return writer.add("Concat", *rows, axis=axis)
