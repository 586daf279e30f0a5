"""Compute everything in an ONNX graph that does not depend on the inputs' values, before the graph is imported.

Exporters write shapes and slice bounds as small programs over Shape nodes. With static shapes these are constants.
TVM's importer can give everything behind them a static shape only if they are folded. Start at `fold_constants`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tuner.graph.importers.onnx.check import describe_node
from tuner.graph.importers.onnx.control import write_out_control
from tuner.graph.importers.onnx.evaluator_fixes import MENDED
from tuner.graph.importers.onnx.rewrites.writer import types_of

Opsets = dict[str, int]  # operator sets by domain
_MOST_BYTES = 1 << 30  # of a node's results; a node of a few bytes can ask for any number of values
_RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}


class TooLarge(Exception):
    """Raised if a node has a constant result that is too large to be kept. The message names the node."""


def fold_constants(model: onnx.ModelProto) -> None:
    """Replace every node with constant operands, and every shape of a static tensor, by its value, in place. Also write
    out the control flow that depends on such values. Raises TooLarge if a value is too large to be kept."""
    while True:
        _constants_to_weights(model)
        folded = _is_foldable(model.graph) and _fold_once(model)
        if not (write_out_control(model) or folded):
            return


def _opsets(model: onnx.ModelProto) -> Opsets:
    return {entry.domain: entry.version for entry in model.opset_import}


def _constants_to_weights(model: onnx.ModelProto) -> None:
    """Turn Constant nodes, which can give their value by different attributes, into weights."""
    graph, opsets = model.graph, _opsets(model)
    kept = []
    for node in graph.node:
        values = _evaluate(node, {}, opsets) if node.op_type == "Constant" else None
        if values is None:
            kept.append(node)
        else:
            graph.initializer.append(numpy_helper.from_array(values[0], node.output[0]))
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def _is_foldable(graph: onnx.GraphProto) -> bool:
    constants = {tensor.name for tensor in graph.initializer}
    return any(_reads_shape(node) or _has_constant_operands(node, constants) for node in graph.node)


def _reads_shape(node: onnx.NodeProto) -> bool:
    """Return whether the result depends only on the operand's shape."""
    return node.op_type in ("Shape", "Size") or (
        node.op_type == "EyeLike" and any(a.name == "dtype" for a in node.attribute)
    )


def _has_constant_operands(node: onnx.NodeProto, constants: set[str]) -> bool:
    reads = [name for name in node.input if name]
    return bool(reads) and node.op_type not in _RANDOM and all(name in constants for name in reads)


def _fold_once(model: onnx.ModelProto) -> bool:
    """Make one pass from inputs to outputs, and return whether anything was folded."""
    graph, opsets = model.graph, _opsets(model)
    values = {tensor.name: tensor for tensor in graph.initializer}
    known, arrays = set(values), dict[str, np.ndarray]()
    shapes = _static_shapes(model)
    folded: dict[str, np.ndarray] = {}
    for node in graph.node:
        reads = [name for name in node.input if name]
        if _reads_shape(node) and reads[0] in shapes:
            operands = {reads[0]: np.empty(shapes[reads[0]], np.bool_)}  # its values are not looked at
        elif _has_constant_operands(node, known):
            for name in reads:
                if name not in arrays:
                    arrays[name] = numpy_helper.to_array(values[name])
            operands = {name: arrays[name] for name in reads}
        else:
            continue
        results = _evaluate(node, operands, opsets)
        if results is not None:
            made = dict(zip([name for name in node.output if name], results, strict=True))
            folded.update(made)
            arrays.update(made)
            known.update(made)
    kept = [node for node in graph.node if not folded.keys() & set(node.output)]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in folded.items())
    return bool(folded)


def _evaluate(node: onnx.NodeProto, operands: Mapping[str, np.ndarray], opsets: Opsets) -> list[np.ndarray] | None:
    """Return the values of a node's outputs. Return None if onnx cannot compute them, so that the importer has to.
    Raises TooLarge if they are too large to be kept."""
    # The node is put into a graph, since onnx evaluates a single node as the newest operator set defines it.
    ends = [[onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name] for names in _names(node)]
    graph = helper.make_graph([node], "folded", *ends)
    try:
        results = ReferenceEvaluator(graph, opsets=opsets, new_ops=list(MENDED)).run(None, dict(operands))
    except MemoryError:
        raise TooLarge(f"{describe_node(node)}: its result is constant and does not fit into memory") from None
    except Exception:
        return None
    if sum(getattr(r, "nbytes", 0) for r in results) > _MOST_BYTES:
        raise TooLarge(f"{describe_node(node)}: its result is constant and larger than {_MOST_BYTES >> 30} GiB")
    return [np.asarray(r) for r in results] if all(isinstance(r, np.ndarray | np.generic) for r in results) else None


def _names(node: onnx.NodeProto) -> tuple[Sequence[str], Sequence[str]]:
    return node.input, node.output


def _static_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors whose shapes are known and free of symbols."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for name, tensor in types_of(model).items():
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[name] = tuple(d.dim_value for d in tensor.shape.dim)
    return shapes
