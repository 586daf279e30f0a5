"""Convert, in simpler steps, ONNX layers whose results TVM's converters give differently from ONNX, or not all of them.

A converter emits into `builder` and returns the node's results, or None if TVM's converter is to be used. Start at
`LAYERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import as_constant, constant

Attributes = Mapping[str, Any]
Convert = Callable[[relax.BlockBuilder, Sequence[Any], Attributes], Any]


def _outputs(attrs: Attributes) -> int:
    return int(attrs["tvm_custom"]["num_outputs"])


def _deviations(builder: relax.BlockBuilder, x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any, Any]:
    """Return the mean, the values less the mean, and one over the standard deviation.

    They are computed in two passes. If the mean is large, the mean of the squares less the square of the mean would
    have no digits left.
    """
    emit = builder.emit
    rough = emit(relax.op.mean(x, axes, keepdims=True))
    rest = emit(relax.op.subtract(x, rough))
    more = emit(relax.op.mean(rest, axes, keepdims=True))  # the part of the mean that rounding has left
    mean, difference = emit(relax.op.add(rough, more)), emit(relax.op.subtract(rest, more))
    variance = emit(relax.op.mean(emit(relax.op.multiply(difference, difference)), axes, keepdims=True))
    return mean, difference, emit(relax.op.rsqrt(emit(relax.op.add(variance, relax.const(epsilon, "float32")))))


def _mean_variance_normalization(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Attributes) -> Any:
    x = inputs[0]
    if dtype_of(x) != "float32":
        return None
    axes = [int(axis) for axis in attrs.get("axes", (0, 2, 3))]
    _, difference, inverse = _deviations(builder, x, axes, 1e-9)
    return relax.op.multiply(difference, inverse)


def _layer_normalization(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Attributes) -> Any:
    """Convert a LayerNormalization that has further outputs: the mean and one over the standard deviation."""
    x, scale, *bias = inputs
    shape = shape_of(x)
    if _outputs(attrs) == 1 or shape is None or dtype_of(x) != "float32":
        return None
    axes = list(range(int(attrs.get("axis", -1)) % len(shape), len(shape)))
    mean, difference, inverse = _deviations(builder, x, axes, float(attrs.get("epsilon", 1e-5)))
    result = builder.emit(relax.op.multiply(builder.emit(relax.op.multiply(difference, inverse)), scale))
    if bias and bias[0] is not None:
        result = builder.emit(relax.op.add(result, bias[0]))
    return relax.Tuple([result, mean, inverse][: _outputs(attrs)])


def _dropout(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Attributes) -> Any:
    """Hand on the values, in inference and in training that drops nothing. The mask is all true. Raises ValueError if
    values would be dropped."""
    x, ratio, training = [*inputs, None, None][:3]
    is_training = np.array(False) if training is None else constant(training)
    share = np.array(0.5) if ratio is None else constant(ratio)
    if is_training is None or (is_training.any() and (share is None or share.any())):
        raise ValueError("it drops values at random, as in training; export the model for inference")
    if _outputs(attrs) == 1:
        return x
    return relax.Tuple([x, builder.emit(relax.op.ones(x.ty.shape, "bool"))])


def _windows(shape: Sequence[int], attrs: Attributes) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Return kernel, strides, dilations, padding before and resulting sizes of the axes behind the channels."""
    rank = len(shape) - 2
    kernel, strides, dilations = (
        [int(v) for v in attrs.get(name) or (1,) * rank] for name in ("kernel_shape", "strides", "dilations")
    )
    pads = [int(v) for v in attrs.get("pads") or (0,) * (2 * rank)]
    sizes = []
    for i, size in enumerate(shape[2:]):
        span = size + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1
        count = (-(-span // strides[i]) if attrs.get("ceil_mode", 0) else span // strides[i]) + 1
        if attrs.get("ceil_mode", 0) and (count - 1) * strides[i] >= size + pads[i]:
            count -= 1  # a window has to begin inside
        sizes.append(count)
    return kernel, strides, dilations, pads[:rank], sizes


def _max_pool(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Attributes) -> Any:
    """Convert a MaxPool that has a second output, which gives the index of each largest value in the whole tensor."""
    x, shape = inputs[0], shape_of(inputs[0])
    if _outputs(attrs) == 1 or shape is None:
        return None
    emit, dtype = builder.emit, str(dtype_of(x))
    kernel, strides, dilations, before, sizes = _windows(shape, attrs)
    order = range(len(kernel))
    steps = [math.prod(shape[2 + i + 1 :]) for i in order]
    if attrs.get("storage_order", 0):  # within an image, the first axis is the fastest
        steps = [math.prod(shape[2 : 2 + i]) for i in order]
    lowest = -math.inf if dtype.startswith("float") else np.iinfo(dtype).min
    best = place = None
    for at in product(*map(range, kernel)):
        value, where, inside = x, np.zeros((1, 1, *[1] * len(kernel)), np.int64), np.ones(1, np.bool_)
        for i in order:
            wide = [-1 if j == 2 + i else 1 for j in range(len(shape))]
            row = np.arange(sizes[i]) * strides[i] - before[i] + at[i] * dilations[i]
            inside = inside & ((row >= 0) & (row < shape[2 + i])).reshape(wide)
            where = where + (np.clip(row, 0, shape[2 + i] - 1) * steps[i]).reshape(wide)
            places = as_constant(np.clip(row, 0, shape[2 + i] - 1).astype(np.int32))
            value = emit(relax.op.take(value, places, 2 + i, mode="clip"))
        value = emit(relax.op.where(as_constant(inside), value, relax.const(lowest, dtype)))
        if best is None:
            best, place = value, emit(relax.op.broadcast_to(relax.const(where, "int64"), (*shape[:2], *sizes)))
            continue
        larger = emit(relax.op.greater(value, best))
        best = emit(relax.op.where(larger, value, best))
        place = emit(relax.op.where(larger, relax.const(where, "int64"), place))
    maps = np.arange(shape[0] * shape[1]).reshape(*shape[:2], *[1] * len(kernel)) * math.prod(shape[2:])
    return relax.Tuple([best, emit(relax.op.add(place, relax.const(maps, "int64")))])


def _lp_pool(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Attributes) -> Any:
    """Take the root of a sum of powers. Windows that reach beyond the end read zeros there."""
    x, shape = inputs[0], shape_of(inputs[0])
    if shape is None or len(shape) != 4 or dtype_of(x) != "float32":
        return None
    emit, power = builder.emit, float(attrs.get("p", 2))
    kernel, strides, dilations, before, sizes = _windows(shape, attrs)
    reach = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(sizes, strides, dilations, kernel, strict=True)]
    behind = [max(r - b - size, 0) for r, b, size in zip(reach, before, shape[2:], strict=True)]
    powers = emit(relax.op.power(emit(relax.op.abs(x)), relax.const(power, "float32")))
    width = [0, 0, 0, 0, before[0], behind[0], before[1], behind[1]]
    padded = emit(relax.op.nn.pad(powers, width, "constant", 0.0)) if any(width) else powers
    means = emit(relax.op.nn.avg_pool2d(padded, kernel, strides, dilation=dilations, count_include_pad=True))
    sums = emit(relax.op.multiply(means, relax.const(float(math.prod(kernel)), "float32")))
    return relax.op.power(sums, relax.const(1 / power, "float32"))


def before_reduction(builder: relax.BlockBuilder, operator: str, x: Any) -> Any:
    """Return the operand of a ReduceMax or ReduceMin in a type that TVM can reduce, which truth values are not."""
    if operator in _EXTREMES and dtype_of(x) == "bool":
        return builder.emit(relax.op.astype(x, "int8"))
    return x


def after_reduction(builder: relax.BlockBuilder, operator: str, x: Any, result: Any) -> Any:
    """Correct the result of a ReduceMax or ReduceMin of `x`. TVM begins a maximum with the least finite number, not
    with minus infinity, and a minimum likewise. Truth values become truth values again."""
    dtype = dtype_of(x) if operator in _EXTREMES else None
    if dtype not in ("bool", "float32"):
        return result
    result = builder.emit(result) if isinstance(result, tvm.ir.Call) else result
    if dtype == "bool":
        return builder.normalize(relax.op.astype(result, "bool"))
    sign = -1.0 if operator == "ReduceMax" else 1.0
    least = relax.const(sign * float(np.finfo(np.float32).max), "float32")
    beyond = relax.op.less_equal if operator == "ReduceMax" else relax.op.greater_equal
    infinity = relax.const(sign * math.inf, "float32")
    return builder.normalize(relax.op.where(builder.emit(beyond(result, least)), infinity, result))


_EXTREMES = ("ReduceMax", "ReduceMin")
LAYERS: dict[str, Convert] = {
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MeanVarianceNormalization": _mean_variance_normalization,
}
