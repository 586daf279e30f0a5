"""Convert ONNX operators to Relax where TVM's converter gives results that are not ONNX's, or that cannot be fused.

TVM would make finished loops of Clip, Pad, Sum, Min and Max, or a stack and a reduction. For other operators TVM's
results or types are not ONNX's. Converters to templates' operators are in `converters.vision`. Start at `CONVERTERS`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import as_constant, constant

Inputs = Sequence[Any]
Attributes = dict[str, Any]


def _scalar(value: Any, default: float) -> float | None:
    """Return a constant operand's value. Return `default` if it is absent or NaN, and None if it is computed."""
    if value is None:
        return default
    if not isinstance(value, tvm.ir.GenericConst):
        return None
    number = float(value.value.numpy().reshape(-1)[0])
    return default if math.isnan(number) else number


def _clip(inputs: Inputs, attrs: Attributes) -> Any:
    dtype = dtype_of(inputs[0])
    if dtype != "float32":
        return None
    low = attrs.get("min", _scalar(inputs[1] if len(inputs) > 1 else None, -math.inf))
    high = attrs.get("max", _scalar(inputs[2] if len(inputs) > 2 else None, math.inf))
    if low is None or high is None:
        return None
    if low == 0 and high == math.inf:
        return relax.op.nn.relu(inputs[0])
    if low > high:  # then every value becomes the upper bound, unless it is NaN
        raised = relax.op.maximum(inputs[0], relax.const(low, dtype))
        return relax.op.minimum(raised, relax.const(high, dtype))
    return relax.op.clip(inputs[0], relax.prim_value(low), relax.prim_value(high))


def _chain(operator: Callable[[Any, Any], Any]) -> Callable[[Inputs, Attributes], Any]:
    def convert(inputs: Inputs, _attrs: Attributes) -> Any:
        return functools.reduce(operator, inputs)

    return convert


def _pow(inputs: Inputs, _attrs: Attributes) -> Any:
    """Give the result the base's type, whatever the exponent's type is. Integers are computed in float64."""
    base, exponent = inputs
    types = dtype_of(base), dtype_of(exponent)
    if types[0] == types[1] and types[0] in ("float32", "float64"):
        return None
    common = "float32" if types[0] == "float32" else "float64"
    power = relax.op.power(relax.op.astype(base, common), relax.op.astype(exponent, common))
    return power if types[0] == common else relax.op.astype(power, types[0])


def _cast(inputs: Inputs, attrs: Attributes) -> Any:
    """Convert floating-point numbers to integers: cut their fractions off, and take the remainder of what is too large
    for the type, as TVM's converter does. What is not finite becomes 0 (`lowering.nans`).

    The conversion of a wider integer keeps its lowest bits, which is the remainder. TVM's converter computes it, and
    reads every value several times, for which the values are written to memory first. That takes ten times as long as a
    quantisation otherwise does.
    """
    source, kind = dtype_of(inputs[0]), np.dtype(onnx.helper.tensor_dtype_to_np_dtype(attrs["to"]))
    if source not in ("float16", "float32", "float64") or kind.kind not in "iu":
        return None
    if kind.itemsize == 8:
        return relax.op.astype(inputs[0], kind.name)
    return relax.op.astype(relax.op.astype(inputs[0], "int64" if kind.itemsize == 4 else "int32"), kind.name)


def _sinh(inputs: Inputs, _attrs: Attributes) -> Any:
    """Compute sinh by its series near 0, since the difference of two powers near 1 has few digits."""
    x = inputs[0]
    if dtype_of(x) != "float32":
        return None

    def number(value: float) -> Any:
        return relax.const(value, "float32")

    square, series = relax.op.multiply(x, x), number(1 / math.factorial(9))
    for order in (7, 5, 3, 1):
        series = relax.op.add(relax.op.multiply(series, square), number(1 / math.factorial(order)))
    powers = relax.op.subtract(relax.op.exp(x), relax.op.exp(relax.op.negative(x)))
    is_near = relax.op.less(relax.op.abs(x), number(1.0))
    return relax.op.where(is_near, relax.op.multiply(series, x), relax.op.multiply(powers, number(0.5)))


def _cosh(inputs: Inputs, _attrs: Attributes) -> Any:
    x = inputs[0]
    if dtype_of(x) != "float32":
        return None
    powers = relax.op.add(relax.op.exp(x), relax.op.exp(relax.op.negative(x)))
    return relax.op.multiply(powers, relax.const(0.5, "float32"))


def _one_hot(inputs: Inputs, attrs: Attributes) -> Any:
    """Count indices below zero from the end, and ignore those out of range. The result has the type of the values."""
    indices, depth, values = inputs[0], constant(inputs[1]), inputs[2]
    if depth is None or shape_of(indices) is None:
        return None
    length, dtype = int(depth.reshape(-1)[0]), dtype_of(indices)
    rank = len(indices.ty.shape) + 1
    axis = int(attrs.get("axis", -1)) % rank
    numbers = np.arange(length).reshape([-1 if i == axis else 1 for i in range(rank)]).astype(dtype)
    place = relax.op.expand_dims(indices, axis)
    below = relax.op.less(place, relax.const(0, dtype))
    place = relax.op.where(below, relax.op.add(place, relax.const(length, dtype)), place)
    off, on = (relax.op.take(values, relax.const(i, "int64"), axis=0) for i in (0, 1))
    return relax.op.where(relax.op.equal(place, relax.const(numbers, dtype)), on, off)


def _is_inf(inputs: Inputs, attrs: Attributes) -> Any:
    x, wanted = inputs[0], []
    for name, value in (("detect_negative", -math.inf), ("detect_positive", math.inf)):
        if attrs.get(name, 1):
            wanted.append(relax.op.equal(x, relax.const(value, dtype_of(x))))
    if not wanted:
        return relax.op.less(x, relax.const(-math.inf, dtype_of(x)))  # false for every x
    return functools.reduce(relax.op.logical_or, wanted)


def _gather(inputs: Inputs, attrs: Attributes) -> Any:
    """Take constant indices after checking them here, once, since TVM warns of indices that are not checked. Raises
    ValueError for an index out of range."""
    data, indices = inputs[0], constant(inputs[1])
    if indices is None or not isinstance(data.ty, relax.TensorType):
        return None
    axis = int(attrs.get("axis", 0)) % len(data.ty.shape)
    size = int(data.ty.shape[axis])
    for index in indices.reshape(-1):
        if not -size <= index < size:
            raise ValueError(f"index {index} is outside of axis {axis}, which has {size} entries")
    places = np.where(indices < 0, indices + size, indices).astype(np.int32)
    return relax.op.take(data, as_constant(places), axis, mode="clip")


def _pad(inputs: Inputs, attrs: Attributes) -> Any:
    """Convert padding with a constant to relax.nn.pad, which can become a convolution's own padding."""
    if attrs.get("mode", b"constant") != b"constant" or len(inputs) > 3:
        return None
    pads = attrs.get("pads")
    if pads is None:
        if len(inputs) < 2 or not isinstance(inputs[1], tvm.ir.GenericConst):
            return None
        pads = [int(p) for p in inputs[1].value.numpy()]
    value = attrs.get("value", _scalar(inputs[2] if len(inputs) > 2 else None, 0.0))
    rank = len(inputs[0].ty.shape)
    if value is None or min(pads) < 0:
        return None
    width = np.array(pads).reshape(2, rank).T.reshape(-1).tolist()
    return relax.op.nn.pad(inputs[0], width, "constant", float(value))


def _sign(inputs: Inputs, _attrs: Attributes) -> Any:
    """Convert Sign so that a NaN, which has no sign, stays NaN."""
    sign = relax.op.sign(inputs[0])
    return relax.op.where(relax.op.isnan(inputs[0]), inputs[0], sign) if "float" in str(dtype_of(inputs[0])) else sign


def _thresholded_relu(inputs: Inputs, attrs: Attributes) -> Any:
    """Choose between values instead of multiplying by zero, since zero times infinity is NaN."""
    dtype = dtype_of(inputs[0])
    over = relax.op.greater(inputs[0], relax.const(float(attrs.get("alpha", 1.0)), dtype))
    return relax.op.where(over, inputs[0], relax.const(0, dtype))


CONVERTERS: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "Cast": _cast,
    "Clip": _clip,
    "Cosh": _cosh,
    "Gather": _gather,
    "IsInf": _is_inf,
    "Max": _chain(relax.op.maximum),
    "Min": _chain(relax.op.minimum),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _pow,
    "Sign": _sign,
    "Sinh": _sinh,
    "Sum": _chain(relax.op.add),
    "ThresholdedRelu": _thresholded_relu,
}
