"""Write the quantised operators of ONNX and of onnxruntime out in floating point. Integers of eight bits, their
differences and their sums below 2**24 are exact there. Start at `QUANTIZED`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from tuner.graph.importers.onnx.rewrites.writer import (
    WINDOW,
    NodeWriter,
    Rewrite,
    attributes_of,
    chosen_attributes,
    key_of,
    operand,
)

_EXACT = 2**24  # integers up to here are float32 values
WHOLE = "Whole"  # our operator that converts whole numbers in floating point to an integer type
_RANGES = {
    TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT2: (-2, 1), TensorProto.UINT2: (0, 3),
    TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255), TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}  # fmt: skip
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Spread:
    """The axis along which scales and zero points differ: at each index, or for each `block` indices."""

    axis: int = 1
    block: int = 0

    @staticmethod
    def of(node: onnx.NodeProto) -> Spread:
        """Return what a node's attributes say."""
        attrs = attributes_of(node)
        return Spread(attrs.get("axis", 1), attrs.get("block_size", 0))


PER_TENSOR = Spread()


def _along(writer: NodeWriter, name: str, x: str, spread: Spread) -> str | None:
    """Return a scale or a zero point in a shape that broadcasts to `x`. It has one value for the whole tensor, or
    values that differ as `spread` says. Return None if a shape is not known or does not fit."""
    axis, block = spread.axis, spread.block
    shape, own = writer.shape(x), writer.shape(name)
    if own is not None and own in ((), (1,)):
        return writer.reshape(name, ()) if own else name
    if own is None or shape is None:
        return None
    axis %= len(shape)
    if len(own) == 1:
        return writer.reshape(name, [own[0] if i == axis else 1 for i in range(len(shape))])
    if not block or own[axis] * block < shape[axis]:
        return None
    narrow = writer.reshape(name, [*own[: axis + 1], 1, *own[axis + 1 :]])
    wide = [*own[: axis + 1], block, *own[axis + 1 :]]
    found = writer.reshape(
        writer.add("Expand", narrow, writer.constant(wide, np.int64)), [*own[:axis], -1, *own[axis + 1 :]]
    )
    if own[axis] * block > shape[axis]:
        found = writer.split(found, axis, [shape[axis], own[axis] * block - shape[axis]])[0]
    return found


def _real(writer: NodeWriter, x: str, zero: str, *, scale: str, spread: Spread = PER_TENSOR) -> str | None:
    """Convert quantised numbers to real numbers in float32. `zero` is empty if the zero point is 0."""
    scale_there = _along(writer, scale, x, spread)
    less = difference(writer, x, zero, spread=spread)
    if scale_there is None or less is None:
        return None
    return writer.add("Mul", less, writer.cast(scale_there, TensorProto.FLOAT))


def difference(writer: NodeWriter, x: str, zero: str, *, spread: Spread = PER_TENSOR) -> str | None:
    """Subtract the zero point from quantised numbers, in float32."""
    value = writer.cast(x, TensorProto.FLOAT)
    if not zero or ((known := writer.value(zero)) is not None and not known.any()):
        return value
    there = _along(writer, zero, x, spread)
    return None if there is None else writer.add("Sub", value, writer.cast(there, TensorProto.FLOAT))


def _quantized(
    writer: NodeWriter, x: str, scale: str, *, zero: str, kind: int | None, spread: Spread = PER_TENSOR
) -> str | None:
    """Quantise real numbers in float32: round to the nearest step, halves to the even one, and clip to the range."""
    there = _along(writer, scale, x, spread)
    if there is None:
        return None
    return _kept(writer, _steps(writer, x, there), x, zero=zero, kind=kind, spread=spread)


def _steps(writer: NodeWriter, x: str, scale: str) -> str:
    """Convert real numbers in float32 to whole steps of a scale."""
    return writer.add("Round", writer.add("Div", x, writer.cast(scale, TensorProto.FLOAT)))


def _kept(
    writer: NodeWriter, steps: str, like: str, *, zero: str, kind: int | None, spread: Spread = PER_TENSOR
) -> str | None:
    """Add the zero point to whole steps, and clip them to the range of the type `kind`. Return None if that is not an
    integer type. `like` has the result's shape, if it is known."""
    if kind is None or kind not in _RANGES:
        return None
    if zero:
        there = _along(writer, zero, like, spread)
        if there is None:
            return None
        steps = writer.add("Add", steps, writer.cast(there, TensorProto.FLOAT))
    shape = writer.shape(like)
    if shape is not None:
        return _whole(writer, steps, shape, kind)
    low, high = (writer.constant(v, np.float32) for v in _RANGES[kind])
    return writer.cast(writer.add("Max", writer.add("Min", steps, high), low), kind)


def _dequantize_linear(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    attrs, x, scale = attributes_of(node), node.input[0], node.input[1]
    kind = writer.elem_type(scale)
    if writer.elem_type(x) not in (*_RANGES, TensorProto.INT32):
        return None
    if writer.elem_type(x) == TensorProto.INT32:  # a bias has too many digits for float32 before it is scaled
        there = _along(writer, scale, x, Spread.of(node))
        wide = writer.cast(x, TensorProto.DOUBLE)
        result = None if there is None else writer.cast(
            writer.add("Mul", wide, writer.cast(there, TensorProto.DOUBLE)), TensorProto.FLOAT
        )  # fmt: skip
    else:
        result = _real(writer, x, operand(node, 2), scale=scale, spread=Spread.of(node))
    kind = attrs.get("output_dtype") or kind
    return None if result is None or kind not in _FLOATS else [writer.cast(result, kind)]


def _quantize_linear(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    attrs, zero = attributes_of(node), operand(node, 2)
    kind = writer.elem_type(zero) if zero else attrs.get("output_dtype") or TensorProto.UINT8
    if writer.shape(node.input[0]) is None:
        return None
    spread = Spread.of(node)
    there = _along(writer, node.input[1], node.input[0], spread)
    if there is None:
        return None
    steps = _steps(writer, writer.cast(node.input[0], TensorProto.FLOAT), there)
    result = _kept(writer, steps, node.input[0], zero=zero, kind=kind, spread=spread)
    return None if result is None else [result]


def _qlinear_conv(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.input
    data, weight = difference(writer, x, x_zero), difference(writer, w, w_zero, spread=Spread(0))
    if data is None or weight is None:
        return None
    reads = [data, weight, *([writer.cast(bias[0], TensorProto.FLOAT)] if bias and bias[0] else [])]
    sums = writer.add("Conv", *reads, **chosen_attributes(node, *WINDOW))
    rank = len(writer.shape(w) or ())
    return _requantized(
        writer, sums, (x_scale, w_scale, y_scale), zero=y_zero, channels=[1, -1, *[1] * (rank - 2)], like=node.output[0]
    )


def _requantized(
    writer: NodeWriter, sums: str, scales: tuple[str, str, str], *, zero: str, channels: Sequence[int], like: str
) -> Sequence[str] | None:
    """Convert sums of products to quantised results. `scales` are those of both operands and of the result; the second
    may have one value for each channel. `like` has the result's shape, if it is known."""
    a, b, y = (writer.cast(s, TensorProto.FLOAT) for s in scales)
    if len(writer.shape(scales[1]) or ()) == 1 and writer.shape(scales[1]) != (1,):
        b = writer.reshape(b, channels)
    factor = writer.add("Div", writer.add("Mul", a, b), y)
    kind = writer.elem_type(zero)
    steps = writer.add("Round", writer.add("Mul", sums, factor))
    result = _kept(writer, steps, like, zero=zero, kind=kind)
    return None if result is None else [result]


def _qlinear_matmul(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    if writer.elem_type(a) not in _RANGES or writer.elem_type(b) not in _RANGES:
        return None
    data, weight = (
        difference(writer, a, a_zero, spread=Spread(-2)),
        difference(writer, b, b_zero, spread=Spread(-1)),
    )
    if data is None or weight is None or len(writer.shape(a_scale) or ()) > 1:
        return None
    return _requantized(
        writer,
        writer.add("MatMul", data, weight),
        (a_scale, b_scale, y_scale),
        zero=y_zero,
        channels=[-1],
        like=node.output[0],
    )


def _qgemm(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write onnxruntime's QGemm: a product of quantised matrices, with a bias in steps of the product of both scales.
    The result is real numbers if it has no scale."""
    attrs, (a, a_scale, a_zero, b, b_scale, b_zero) = attributes_of(node), node.input[:6]
    columns = -2 if attrs.get("transB", 0) else -1
    data, weight = difference(writer, a, a_zero), difference(writer, b, b_zero, spread=Spread(columns))
    if data is None or weight is None:
        return None
    kind = TensorProto.FLOAT
    reads = [data, weight, *([writer.cast(operand(node, 6), kind)] if operand(node, 6) else [])]
    sums = writer.add("Gemm", *reads, **chosen_attributes(node, "transA", "transB"))
    if operand(node, 7):
        return _requantized(
            writer, sums, (a_scale, b_scale, node.input[7]), zero=operand(node, 8), channels=[-1], like=node.output[0]
        )
    return [writer.add("Mul", sums, writer.add("Mul", a_scale, b_scale))]


def _integer_product(writer: NodeWriter, node: onnx.NodeProto, axes: tuple[int, int]) -> tuple[str, str] | None:
    """Return both operands of a product of integers less their zero points, in float32."""
    x, w = node.input[:2]
    data = difference(writer, x, operand(node, 2), spread=Spread(axes[0]))
    weight = difference(writer, w, operand(node, 3), spread=Spread(axes[1]))
    return None if data is None or weight is None else (data, weight)


def _most(writer: NodeWriter, name: str, zero: str) -> np.ndarray:
    """Return, for each value of a tensor, the largest difference from the zero point that it may have."""
    known, there = writer.value(name), writer.value(zero) if zero else np.zeros((), np.int64)
    shape = writer.shape(name) or ()
    if known is None or there is None:
        return np.full(shape, 255, np.int64)
    wide = there.astype(np.int64)
    if wide.ndim == 1 and wide.size > 1:
        wide = wide.reshape(-1, *[1] * (len(shape) - 1)) if wide.size == shape[0] else wide
    return np.abs(known.astype(np.int64) - wide)


def _conv_integer(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write the convolution of differences. Its sums are exact: see `tuner.graph.ir.integers`."""
    operands, shape = _integer_product(writer, node, (1, 0)), writer.shape(node.input[1])
    out = writer.shape(node.output[0])
    if operands is None or shape is None or out is None:
        return None
    largest = int(_most(writer, node.input[1], operand(node, 3)).reshape(shape[0], -1).sum(1).max(initial=0)) * 255
    sums = writer.add("Conv", *_wide(writer, operands, largest), **chosen_attributes(node, *WINDOW))
    return [_whole(writer, sums, out, TensorProto.INT32)]


def _matmul_integer(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write the product of differences. Its sums are exact."""
    operands, shape = _integer_product(writer, node, (-2, -1)), writer.shape(node.input[1])
    out = writer.shape(node.output[0])
    if operands is None or shape is None or out is None:
        return None
    inner = shape[-2] if len(shape) > 1 else shape[0]
    largest = inner * 255 * int(_most(writer, node.input[1], operand(node, 3)).max(initial=0))
    return [_whole(writer, writer.add("MatMul", *_wide(writer, operands, largest)), out, TensorProto.INT32)]


def _wide(writer: NodeWriter, operands: Sequence[str], largest: int) -> Sequence[str]:
    """Return operands in float64 if their sums, of which `largest` is the largest, could be rounded in float32."""
    return operands if largest <= _EXACT else [writer.cast(name, TensorProto.DOUBLE) for name in operands]


def _whole(writer: NodeWriter, numbers: str, shape: Sequence[int], kind: int) -> str:
    """Convert whole numbers to an integer type. All but sums in int32, which has room for them, are clipped to its
    range."""
    low, high = _RANGES.get(kind, (0, 0))
    return writer.add_own(WHOLE, [numbers], [tuple(shape)], elem_type=kind, to=kind, low=low, high=high)[0]


def _dynamic_quantize_linear(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Quantise to unsigned integers of eight bits by the range of the values, which is extended to include 0."""
    x, shape = node.input[0], writer.shape(node.input[0])
    if shape is None:
        return None
    zero = writer.constant(0.0, np.float32)
    flat = writer.reshape(x, [-1])
    low = writer.add("Min", writer.reduce("ReduceMin", flat, [0], 0), zero)
    high = writer.add("Max", writer.reduce("ReduceMax", flat, [0], 0), zero)
    scale = writer.add("Div", writer.add("Sub", high, low), writer.constant(255.0, np.float32))
    least, most = (writer.constant(v, np.float32) for v in (0, 255))
    steps = writer.add("Sub", least, writer.add("Div", low, scale))
    point = writer.add("Round", writer.add("Max", writer.add("Min", steps, most), least))
    moved = writer.add("Add", writer.add("Round", writer.add("Div", x, scale)), point)
    kind = TensorProto.UINT8
    return [_whole(writer, moved, shape, kind), scale, _whole(writer, point, (), kind)]


def _by_dequantizing(compute: Callable[[NodeWriter, onnx.NodeProto, list[str]], str | None], operands: int) -> Rewrite:
    """Return a rewrite that computes in real numbers and quantises the result. `compute` returns None where it cannot.

    The node reads each operand with its scale and its zero point, then the scale and the zero point of the result. If
    `operands` is 0, the node has any number of operands, and those of the result come first.
    """

    def rewrite(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
        count = operands or (len(node.input) - 2) // 3
        first = 0 if operands else 2
        reads = [
            _real(writer, node.input[i], operand(node, i + 2), scale=node.input[i + 1])
            for i in range(first, first + 3 * count, 3)
        ]
        at = 3 * count if operands else 0
        scale, zero = node.input[at], operand(node, at + 1)
        kind = writer.elem_type(node.input[first])
        if None in reads or kind is None:
            return None
        value = compute(writer, node, [str(read) for read in reads])
        result = None if value is None else _quantized(writer, value, scale, zero=zero, kind=kind)
        return None if result is None else [result]

    return rewrite


def _node(kind: str, *names: str) -> Callable[[NodeWriter, onnx.NodeProto, list[str]], str]:
    """Return a function that adds a node of ONNX's own operator `kind`, with the attributes that have these names."""

    def compute(writer: NodeWriter, node: onnx.NodeProto, reads: list[str]) -> str:
        return writer.add(kind, *reads, **chosen_attributes(node, *names))

    return compute


def _pooled(writer: NodeWriter, node: onnx.NodeProto, reads: list[str]) -> str:
    attrs = attributes_of(node)
    if attrs.pop("channels_last", 0):
        rank = len(writer.shape(node.input[0]) or (0,) * 4)
        first = writer.add("Transpose", reads[0], perm=[0, rank - 1, *range(1, rank - 1)])
        last = [0, *range(2, rank), 1]
        return writer.add("Transpose", writer.add(node.op_type.removeprefix("QLinear"), first, **attrs), perm=last)
    return writer.add(node.op_type.removeprefix("QLinear"), *reads, **attrs)


def _softmax(writer: NodeWriter, node: onnx.NodeProto, reads: list[str]) -> str | None:
    """Add a softmax. Before version 13 of ONNX it was along all axes from `axis` on, for which the shape is needed."""
    attrs = attributes_of(node)
    axis, shape = int(attrs.get("axis", -1)), writer.shape(node.input[0])
    if int(attrs.get("opset", 13)) >= 13:
        return writer.add("Softmax", *reads, axis=axis)
    if shape is None:
        return None
    rows = int(np.prod(shape[: axis % len(shape)], dtype=np.int64))
    return writer.reshape(writer.add("Softmax", writer.reshape(reads[0], [rows, -1]), axis=-1), shape)


_MICROSOFT = "com.microsoft"
QUANTIZED: dict[tuple[str, str], Rewrite] = {
    ("", "ConvInteger"): _conv_integer,
    ("", "DequantizeLinear"): _dequantize_linear,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize_linear,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "QuantizeLinear"): _quantize_linear,
    (_MICROSOFT, "DequantizeLinear"): _dequantize_linear,
    (_MICROSOFT, "QuantizeLinear"): _quantize_linear,
    (_MICROSOFT, "QGemm"): _qgemm,
    (_MICROSOFT, "QLinearAdd"): _by_dequantizing(_node("Add"), 2),
    (_MICROSOFT, "QLinearMul"): _by_dequantizing(_node("Mul"), 2),
    (_MICROSOFT, "QLinearSigmoid"): _by_dequantizing(_node("Sigmoid"), 1),
    (_MICROSOFT, "QLinearSoftmax"): _by_dequantizing(_softmax, 1),
    (_MICROSOFT, "QLinearLeakyRelu"): _by_dequantizing(_node("LeakyRelu", "alpha"), 1),
    (_MICROSOFT, "QLinearGlobalAveragePool"): _by_dequantizing(_pooled, 1),
    (_MICROSOFT, "QLinearAveragePool"): _by_dequantizing(_pooled, 1),
    (_MICROSOFT, "QLinearConcat"): _by_dequantizing(_node("Concat", "axis"), 0),
}


def is_quantised(model: onnx.ModelProto) -> bool:
    """Tell whether a model quantises values to eight bits on their way."""
    dynamic = ("DynamicQuantize", "MatMulInteger")  # DynamicQuantizeLSTM, MatMulIntegerToFloat and others
    return any(key_of(node) in QUANTIZED or node.op_type.startswith(dynamic) for node in model.graph.node)
