"""Write ONNX operators that TVM's importer lacks or understands differently out in simpler ones. Start at `WRITTEN`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, Rewrite, Unwritable, attributes_of, operand


def _lp_normalization(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Divide by the norm along an axis. The result is zero where the norm is zero."""
    attrs, x = attributes_of(node), node.input[0]
    if writer.dtype(x) is None:
        return None
    norm = writer.reduce(f"ReduceL{attrs.get('p', 2)}", x, [attrs.get("axis", -1)])
    none = writer.add("Equal", norm, writer.scalar_like(x, 0.0))
    return [writer.add("Div", x, writer.add("Where", none, writer.scalar_like(x, 1.0), norm))]


def _col2im(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Add overlapping blocks by a transposed convolution. Each of its kernels has a single 1, at its own position."""
    x, attrs = node.input[0], attributes_of(node)
    shape, image, block = writer.shape(x), writer.value(node.input[1]), writer.value(node.input[2])
    if shape is None or image is None or block is None:
        return None
    rank, kernel = len(block), [int(k) for k in block]
    strides, dilations = (list(attrs.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(attrs.get("pads", [0] * (2 * rank)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    padded = [int(size) + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    counts = [(p - r) // s + 1 for p, r, s in zip(padded, reach, strides, strict=True)]
    behind = [p - ((n - 1) * s + r) for p, n, s, r in zip(padded, counts, strides, reach, strict=True)]
    size = math.prod(kernel)
    channels = shape[1] // size
    weight = np.tile(np.eye(size, dtype=writer.dtype(x)).reshape(size, 1, *kernel), (channels, 1, *[1] * rank))
    blocks = writer.reshape(x, [shape[0], shape[1], *counts])
    window = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": behind}
    return [writer.add("ConvTranspose", blocks, writer.constant(weight), group=channels, **window)]


def _deform_conv(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Sample the input at the offset positions by GridSample, then multiply with the weights as one 1x1 convolution."""
    x, w, offset = node.input[:3]
    attrs, data, weight, given = attributes_of(node), writer.shape(x), writer.shape(w), writer.shape(offset)
    kind = writer.dtype(x)
    if data is None or weight is None or given is None or kind is None or len(data) != 4:
        return None
    (n, c, h, width), (kh, kw), (rows, columns) = data, weight[2:], given[2:]
    groups, points = attrs.get("offset_group", 1), kh * kw
    (stride_y, stride_x), (dilation_y, dilation_x) = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    top, left = attrs.get("pads", [0, 0, 0, 0])[:2]
    y = np.arange(rows)[:, None] * stride_y - top + np.zeros((1, columns))
    x_at = np.arange(columns)[None] * stride_x - left + np.zeros((rows, 1))
    base = np.array([[y + i * dilation_y, x_at + j * dilation_x] for i in range(kh) for j in range(kw)])
    moves = writer.reshape(offset, [n, groups, points, 2, rows, columns])
    places = writer.add("Add", moves, writer.constant(base[None, None], kind))
    # GridSample counts from -1 to 1 over the outer edges of the outer pixels.
    sizes = np.array([h, width]).reshape(2, 1, 1)
    scaled = writer.add("Mul", places, writer.constant(2 / sizes, kind))
    grid = writer.add("Add", scaled, writer.constant(1 / sizes - 1, kind))
    parts = [writer.reshape(p, [n * groups, points * rows, columns, 1]) for p in writer.split(grid, 3, [1, 1])]
    images = writer.reshape(x, [n * groups, c // groups, h, width])
    samples = writer.add(
        "GridSample", images, writer.add("Concat", *parts[::-1], axis=3),
        mode="bilinear" if writer.opset < 20 else "linear", padding_mode="zeros", align_corners=0,
    )  # fmt: skip
    if operand(node, 4):
        samples = writer.add("Mul", samples, writer.reshape(operand(node, 4), [n * groups, 1, points * rows, columns]))
    blocks = writer.reshape(samples, [n, c * points, rows, columns])
    flat = writer.reshape(w, [weight[0], weight[1] * points, 1, 1])
    bias = [operand(node, 3)] if operand(node, 3) else []
    return [writer.add("Conv", blocks, flat, *bias, group=attrs.get("group", 1), kernel_shape=[1, 1])]


def _reverse_sequence(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Gather the first steps of each sequence, as many as its length says, in reverse order. Later steps stay."""
    x, lengths = node.input
    attrs, shape = attributes_of(node), writer.shape(x)
    if shape is None:
        return None
    time, batch = attrs.get("time_axis", 0), attrs.get("batch_axis", 1)
    steps, count = shape[time], shape[batch]
    at = writer.constant(np.arange(steps).reshape(-1, 1), np.int64)
    length = writer.reshape(writer.cast(lengths, TensorProto.INT64), [1, count])
    last = writer.add("Sub", length, writer.constant(1, np.int64))
    chosen = writer.add("Where", writer.add("Less", at, length), writer.add("Sub", last, at), at)
    if time == 0:
        index = writer.add(
            "Add", writer.add("Mul", chosen, writer.constant(count, np.int64)),
            writer.constant(np.arange(count).reshape(1, -1), np.int64),
        )  # fmt: skip
    else:
        rows = writer.constant(np.arange(count).reshape(1, -1) * steps, np.int64)
        index = writer.add("Transpose", writer.add("Add", chosen, rows), perm=[1, 0])
    flat = writer.reshape(x, [steps * count, *shape[2:]])
    return [writer.reshape(writer.add("Gather", flat, writer.reshape(index, [-1]), axis=0), shape)]


def _concat(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Leave out operands that have no entries."""
    shapes = [writer.shape(name) for name in node.input]
    kept = [name for name, shape in zip(node.input, shapes, strict=True) if shape is None or 0 not in shape]
    if len(kept) in (0, len(node.input)):
        return None
    return [kept[0] if len(kept) == 1 else writer.add("Concat", *kept, **attributes_of(node))]


def _space_to_depth(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write the mode CRD, in which the channels come first: the block of every channel stays together."""
    attrs, shape = attributes_of(node), writer.shape(node.input[0])
    if attrs.get("mode", "DCR") != "CRD" or shape is None:
        return None
    (n, c, h, w), b = shape, attrs["blocksize"]
    blocks = writer.reshape(node.input[0], [n, c, h // b, b, w // b, b])
    return [writer.reshape(writer.add("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4]), [n, c * b * b, h // b, w // b])]


def _mish(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write x tanh(log(1 + e)), where e is exp(x), as x e (e + 2) / (e (e + 2) + 2), which loses no digits where x is
    small."""
    x = node.input[0]
    if writer.dtype(x) is None:
        return None
    two = writer.scalar_like(x, 2.0)
    power = writer.add("Exp", writer.add("Min", x, writer.scalar_like(x, 30.0)))
    product = writer.add("Mul", power, writer.add("Add", power, two))
    return [writer.add("Mul", x, writer.add("Div", product, writer.add("Add", product, two)))]


def _top_k(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Cast values of a type that TVM does not sort to one that it sorts and that has all their values. Raises
    Unwritable if there is none."""
    kind = writer.elem_type(node.input[0])
    if kind in (TensorProto.UINT64, TensorProto.BOOL):
        raise Unwritable(f"values of dtype {TensorProto.DataType.Name(kind).lower()} are not sorted")
    if kind is None or kind not in _UNSORTED:
        return None
    wide = TensorProto.INT64 if kind == TensorProto.UINT32 else TensorProto.INT32
    reads = [writer.cast(node.input[0], wide), *node.input[1:]]
    values, places = writer.add_many("TopK", reads, 2, **attributes_of(node))
    return [writer.cast(values, kind), places]


def _softplus(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write max(x, 0) + log(1 + e), where e is exp(-|x|). log(1 + e) is computed as e log(u) / (u - 1), where u is
    1 + e after rounding. So no digits are lost where e is small."""
    x = node.input[0]
    if writer.dtype(x) is None:
        return None
    one, zero = writer.scalar_like(x, 1.0), writer.scalar_like(x, 0.0)
    power = writer.add("Exp", writer.add("Neg", writer.add("Abs", x)))
    whole = writer.add("Add", power, one)
    rest = writer.add("Sub", whole, one)
    log = writer.add("Div", writer.add("Mul", power, writer.add("Log", whole)), rest)
    small = writer.add("Where", writer.add("Equal", rest, zero), power, log)
    return [writer.add("Add", writer.add("Max", x, zero), small)]


def _bit_shift(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a shift that may be negative or as wide as the type. The result is then zero, except that a shift of signed
    integers to the right leaves the sign."""
    x, shift = node.input
    kind, left = writer.dtype(x), attributes_of(node).get("direction") == "LEFT"
    known = writer.value(shift)
    if kind is None or (known is not None and (known < kind.itemsize * 8).all() and (known >= 0).all()):
        return None
    if node.name.endswith(_KEPT):
        return None
    inside = writer.add("Less", shift, writer.constant(kind.itemsize * 8, kind))
    if kind.kind == "i":
        inside = writer.add("And", inside, writer.add("GreaterOrEqual", shift, writer.constant(0, kind)))
    all_bits = writer.constant(kind.itemsize * 8 - 1, kind)
    result = writer.add("BitShift", x, writer.add("Where", inside, shift, all_bits), **attributes_of(node))
    writer.nodes[-1].name += _KEPT
    if kind.kind == "i" and not left:
        return [result]
    return [writer.add("Where", inside, result, writer.constant(0, kind))]


def _mod(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write the modulo of floating-point numbers that has the divisor's sign. It is the result of fmod, to which the
    divisor is added where the signs differ."""
    kind = writer.dtype(node.input[0])
    if kind is None or kind.kind in "iu" or attributes_of(node).get("fmod", 0):
        return None
    a, b = node.input
    zero = writer.constant(0, kind)
    rest = writer.add("Mod", a, b, fmod=1)
    differs = writer.add("Less", writer.add("Mul", writer.add("Sign", rest), writer.add("Sign", b)), zero)
    return [writer.add("Where", differs, writer.add("Add", rest, b), rest)]


def _batch_normalization(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a normalisation in training mode, by the batch's own mean and variance. Further results are the running
    mean and variance."""
    attrs, shape, kind = attributes_of(node), writer.shape(node.input[0]), writer.dtype(node.input[0])
    if not attrs.get("training_mode", 0) or shape is None or kind is None:
        return None
    x, scale, shift, *running = node.input
    axes = [axis for axis in range(len(shape)) if axis != 1]
    mean = writer.reduce("ReduceMean", x, axes)
    rest = writer.add("Sub", x, mean)
    variance = writer.reduce("ReduceMean", writer.add("Mul", rest, rest), axes)
    root = writer.add("Sqrt", writer.add("Add", variance, writer.constant(attrs.get("epsilon", 1e-5), kind)))
    column = [-1, *[1] * (len(shape) - 2)]
    value = writer.add("Mul", writer.add("Div", rest, root), writer.reshape(scale, column))
    results = [writer.add("Add", value, writer.reshape(shift, column))]
    momentum = attrs.get("momentum", 0.9)
    for old, new in zip(running, (mean, variance), strict=True):
        kept = writer.add("Mul", old, writer.constant(momentum, kind))
        fresh = writer.add("Mul", writer.reshape(new, [-1]), writer.constant(1 - momentum, kind))
        results.append(writer.add("Add", kept, fresh))
    return results


_UNSORTED = (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32)
_KEPT = "/in_range"  # ends the name of a shift that is in range
WRITTEN: dict[tuple[str, str], Rewrite] = {
    ("", "BatchNormalization"): _batch_normalization,
    ("", "BitShift"): _bit_shift,
    ("", "Col2Im"): _col2im,
    ("", "Concat"): _concat,
    ("", "DeformConv"): _deform_conv,
    ("", "LpNormalization"): _lp_normalization,
    ("", "Mish"): _mish,
    ("", "Mod"): _mod,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "Softplus"): _softplus,
    ("", "SpaceToDepth"): _space_to_depth,
    ("", "TopK"): _top_k,
}
