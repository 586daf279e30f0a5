"""Computing on the ONNX graph, before it is imported, whatever does not depend on the inputs' values.

Exporters write shapes and slice bounds as small programs over Shape nodes. With static shapes they are constants, and
only as constants can TVM's importer give everything behind them a static shape. Start at `fold_constants`.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

_RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
_MAX_INFERRED_BYTES = 2**31 - 1  # protobuf's limit for a message in memory


def fold_constants(model: onnx.ModelProto) -> None:
    """Replace every node with constant operands, and every shape of a static tensor, by its value, in place."""
    while _is_foldable(model.graph) and _fold_once(model):
        pass


def _is_foldable(graph: onnx.GraphProto) -> bool:
    constants = {tensor.name for tensor in graph.initializer}
    return any(node.op_type in ("Shape", "Size") or _has_constant_operands(node, constants) for node in graph.node)


def _has_constant_operands(node: onnx.NodeProto, constants: set[str]) -> bool:
    reads = [name for name in node.input if name]
    return bool(reads) and node.op_type not in _RANDOM and all(name in constants for name in reads)


def _fold_once(model: onnx.ModelProto) -> bool:
    """One pass from inputs to outputs; whether anything was folded."""
    graph = model.graph
    values = {tensor.name: tensor for tensor in graph.initializer}
    known = set(values) | {node.output[0] for node in graph.node if node.op_type == "Constant"}
    arrays = {n.output[0]: a for n in graph.node if n.op_type == "Constant" and (a := _evaluate(n, {})) is not None}
    shapes = _static_shapes(model)
    results = {output.name for output in graph.output}
    folded: dict[str, np.ndarray] = {}
    for node in graph.node:
        if node.op_type == "Constant" or len(node.output) != 1 or node.output[0] in results:
            continue
        reads = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size") and reads[0] in shapes:
            operands = {reads[0]: np.empty(shapes[reads[0]], np.bool_)}  # its values are not looked at
        elif _has_constant_operands(node, known):
            for name in reads:
                if name not in arrays:
                    arrays[name] = numpy_helper.to_array(values[name])
            operands = {name: arrays[name] for name in reads}
        else:
            continue
        result = _evaluate(node, operands)
        if result is not None:
            folded[node.output[0]] = arrays[node.output[0]] = result
            known.add(node.output[0])
    kept = [node for node in graph.node if not folded.keys() & set(node.output)]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in folded.items())
    return bool(folded)


def _evaluate(node: onnx.NodeProto, operands: dict[str, np.ndarray]) -> np.ndarray | None:
    """The value of a node; None where onnx cannot compute it, which leaves it to the importer."""
    try:
        (result,) = ReferenceEvaluator(node).run(None, operands)
    except Exception:
        return None
    return np.asarray(result) if isinstance(result, np.ndarray | np.generic) else None


def _static_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors that are known and free of symbols."""
    if model.ByteSize() < _MAX_INFERRED_BYTES:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in [*model.graph.input, *model.graph.value_info]:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return shapes
