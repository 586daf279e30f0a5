"""Find the integers that an ONNX model accepts for inputs that choose entries of tensors. Start at `entries_chosen`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from tuner.graph.importers.onnx.check import graph_inputs
from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, attributes_of, operand

_WIDE = {
    onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.UINT32, onnx.TensorProto.UINT64,
}  # fmt: skip
# These operators hand integers on unchanged.
_MOVES = {
    "Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
}  # fmt: skip


def entries_chosen(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many entries each input of wide integers chooses from, such as the rows of an embedding. Inputs that
    choose nothing are left out. If an input chooses from several tensors, the smallest number counts."""
    wide = [v.name for v in graph_inputs(model.graph) if v.type.tensor_type.elem_type in _WIDE]
    if not wide:
        return {}
    writer = NodeWriter(model)
    found = {name: list(_choices(writer, model.graph, name)) for name in wide}
    return {name: min(counts) for name, counts in found.items() if counts}


def _choices(writer: NodeWriter, graph: onnx.GraphProto, name: str) -> Iterator[int]:
    """Yield the numbers of entries that a tensor chooses from, wherever it arrives unchanged."""
    same = {name}
    for node in graph.node:
        read = node.input if node.op_type == "Concat" else node.input[:1]
        if node.op_type in _MOVES and same & set(read):
            same.update(node.output)
        elif (count := _entries(writer, node, same)) is not None:
            yield count


def _entries(writer: NodeWriter, node: onnx.NodeProto, indexes: set[str]) -> int | None:
    """Return how many entries a node chooses from by one of the tensors in `indexes`. Return None if it does not
    choose, or if the number is not known."""
    place, axis = _CHOOSES.get(node.op_type, (-1, None))
    if place < 0 or operand(node, place) not in indexes:
        return None
    if node.op_type == "OneHot":
        depth = writer.value(node.input[1])
        return None if depth is None else int(depth.reshape(-1)[0])
    shape = writer.shape(node.input[0])
    if shape is None:
        return None
    if axis is None:  # tuples of indexes of several axes: each index has to be valid for all axes
        return min(shape)
    return shape[attributes_of(node).get("axis", axis) % len(shape)]


# Says for each operator which operand is an index, and along which axis unless the node gives another.
_CHOOSES: Mapping[str, tuple[int, int | None]] = {
    "Gather": (1, 0),
    "GatherElements": (1, 0),
    "GatherND": (1, None),
    "OneHot": (0, -1),
    "RoiAlign": (2, 0),
    "ScatterElements": (1, 0),
    "ScatterND": (1, None),
}
