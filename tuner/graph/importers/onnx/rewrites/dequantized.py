"""Bring the quantised part of a QDQ model together, before constants are folded. Start at `write_dequantized`.

Such a model has a DequantizeLinear behind every quantised tensor and computes in real numbers. A product of a
dequantised tensor with a dequantised constant becomes a product of integers less their zero points, which is scaled
afterwards. Operators that move or choose values move or choose integers. Signed activations become unsigned ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tuner.graph.importers.onnx.rewrites.quantized import PER_TENSOR, Spread, difference
from tuner.graph.importers.onnx.rewrites.writer import (
    WINDOW,
    NodeWriter,
    Rewrite,
    attributes_of,
    chosen_attributes,
    operand,
    write_out,
)

_EIGHT_BITS = (TensorProto.UINT8, TensorProto.INT8)
_MOVES = ("Flatten", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_INTEGER_POOLS = 12  # the first operator set with a MaxPool of integers


def write_dequantized(model: onnx.ModelProto, source: str) -> None:
    """Rewrite a QDQ model in place."""
    _make_unsigned(model)
    write_out(model, _REWRITES, source)


def _make_unsigned(model: onnx.ModelProto) -> None:
    """Let activations that are quantised to int8 be uint8, with a zero point that is larger by 128."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    results = {value.name for value in graph.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    moved: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3 or node.output[0] in results:
            continue
        behind = readers.get(node.output[0], [])
        zeros = [n.input[2] if len(n.input) > 2 else "" for n in (node, *behind)]
        signed = all(name in constants and constants[name].data_type == TensorProto.INT8 for name in zeros)
        if not signed or any(n.op_type != "DequantizeLinear" or n.input[0] != node.output[0] for n in behind):
            continue
        for at in (node, *behind):
            if at.input[2] not in moved:
                value = numpy_helper.to_array(constants[at.input[2]]).astype(np.int16) + 128
                moved[at.input[2]] = f"{at.input[2]}/unsigned"
                graph.initializer.append(numpy_helper.from_array(value.astype(np.uint8), moved[at.input[2]]))
            at.input[2] = moved[at.input[2]]
        _forget(graph, node.output[0])


def _forget(graph: onnx.GraphProto, name: str) -> None:
    """Remove what the model says of a tensor's type."""
    kept = [value for value in graph.value_info if value.name != name]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _dequantized(writer: NodeWriter, name: str) -> onnx.NodeProto | None:
    """Return the node that makes a tensor of real numbers from integers of eight bits, if there is one."""
    node = writer.producer(name)
    if node is None or node.op_type != "DequantizeLinear" or attributes_of(node).get("block_size", 0):
        return None
    float32 = writer.elem_type(node.input[1]) == TensorProto.FLOAT and writer.elem_type(name) == TensorProto.FLOAT
    return node if float32 and writer.elem_type(node.input[0]) in _EIGHT_BITS else None


def _factors(writer: NodeWriter, node: onnx.NodeProto, axis: int) -> tuple[str, str, str, int] | None:
    """Return both operands of a product as integers less their zero points, the product of their scales, and how many
    values that has. Return None if they are not dequantised so: the first as a whole, the second along `axis`."""
    first, second = (_dequantized(writer, name) for name in node.input[:2])
    if first is None or second is None or writer.value(second.input[0]) is None:
        return None
    scale, scales = writer.shape(first.input[1]), writer.shape(second.input[1])
    weight = writer.shape(second.input[0])
    if scale not in ((), (1,)) or scales is None or weight is None or len(scales) > 1:
        return None
    count = scales[0] if scales else 1
    spread = PER_TENSOR if count == 1 else Spread.of(second)
    if count > 1 and spread.axis % len(weight) != axis % len(weight):
        return None
    data = difference(writer, first.input[0], operand(first, 2))
    numbers = difference(writer, second.input[0], operand(second, 2), spread=spread)
    if data is None or numbers is None:
        return None
    return data, numbers, writer.add("Mul", writer.reshape(first.input[1], ()), second.input[1]), count


def _conv(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    found, shape = _factors(writer, node, 0), writer.shape(node.input[1])
    if found is None or shape is None:
        return None
    data, weight, scale, count = found
    sums = writer.add("Conv", data, weight, **chosen_attributes(node, *WINDOW))
    each = [1, -1, *[1] * (len(shape) - 2)]
    real = writer.add("Mul", sums, writer.reshape(scale, each if count > 1 else ()))
    return [writer.add("Add", real, writer.reshape(node.input[2], each)) if operand(node, 2) else real]


def _conv_transpose(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a transposed convolution of differences. A weight has the channels of one group's results along its second
    axis, and so has its scale."""
    found, shape = _factors(writer, node, 1), writer.shape(node.input[1])
    if found is None or shape is None:
        return None
    data, weight, scale, count = found
    window = chosen_attributes(node, *WINDOW, "output_padding", "output_shape")
    sums, each = writer.add("ConvTranspose", data, weight, **window), [1, -1, *[1] * (len(shape) - 2)]
    groups = attributes_of(node).get("group", 1)
    if count > 1 and groups > 1:
        scale = writer.add("Concat", *[scale] * groups, axis=0)
    real = writer.add("Mul", sums, writer.reshape(scale, each if count > 1 else ()))
    return [writer.add("Add", real, writer.reshape(node.input[2], each)) if operand(node, 2) else real]


def _gemm(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    attrs = attributes_of(node)
    if attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0 or attrs.get("transA", 0):
        return None
    found = _factors(writer, node, 0 if attrs.get("transB", 0) else 1)
    if found is None:
        return None
    data, weight, scale, count = found
    sums = writer.add("Gemm", data, weight, transB=attrs.get("transB", 0))
    real = writer.add("Mul", sums, writer.reshape(scale, [-1] if count > 1 else ()))
    return [writer.add("Add", real, node.input[2]) if operand(node, 2) else real]


def _matmul(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    shape = writer.shape(node.input[1])
    found = _factors(writer, node, 1) if shape is not None and len(shape) == 2 else None
    if found is None:
        return None
    data, weight, scale, count = found
    return [writer.add("Mul", writer.add("MatMul", data, weight), writer.reshape(scale, [-1] if count > 1 else ()))]


def _quantize(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a quantisation of dequantised values that were only moved or chosen: move or choose the integers."""
    mover = writer.producer(node.input[0])
    if mover is None or mover.op_type not in _MOVES or len(mover.output) > 1 or len(node.input) < 3:
        return None
    if mover.op_type == "MaxPool" and (writer.opset < _INTEGER_POOLS or attributes_of(mover).get("storage_order", 0)):
        return None
    source = _dequantized(writer, mover.input[0])
    if source is None or len(source.input) < 3:
        return None
    for ours, theirs in zip(node.input[1:3], source.input[1:3], strict=True):
        one, other = writer.value(ours), writer.value(theirs)
        if one is None or other is None or one.size != 1 or one.dtype != other.dtype or (one != other).any():
            return None
    return [writer.add(mover.op_type, source.input[0], *mover.input[1:], **attributes_of(mover))]


_REWRITES: dict[tuple[str, str], Rewrite] = {
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("", "QuantizeLinear"): _quantize,
}
