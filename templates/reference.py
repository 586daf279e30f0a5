"""The float64 references that the results of anchors are checked against, and the random operands to compute them from.

Start at `random_operands` and `reference`. `relative_error` compares a result with its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from templates.bfloats import BFLOAT16, rounded
from templates.epilogue import OPERANDS, apply_numpy, operands
from templates.integers import SUMS, WEIGHT, Types
from templates.workloads import Conv2d, anchor_of
from tuning_db.record import Workload

_STEPS = 40.0  # what quantised results of near one are multiplied by, so that they are of the whole range
_ZERO, _OTHER_ZERO = 100.0, 131.0  # the zero points of quantised results, and of what is added to them
# The numbers of sums of bytes with steps, and with real numbers.
_SUM_OF_STEPS = [0.8, 0.6, -0.8 * _ZERO - 0.6 * _OTHER_ZERO]
_SUM_OF_REALS = [1.0, 0.6 / _STEPS, -0.6 * _OTHER_ZERO / _STEPS]
_SPREAD = 74.0 * 148.0  # the standard deviation of random weights, times the root of the mean square of random data


@dataclass(frozen=True)
class Operands:
    """The operands of an anchor, which are arrays of the workload's dtype in plain layout.

    `data` is NCHW or NC, `weight` is OIHW or (out, in). `extra` has one array per operand of the epilogue, in
    order: a bias is (channels,), an "add" operand has the output's shape.
    """

    data: np.ndarray
    weight: np.ndarray
    extra: tuple[np.ndarray, ...]


def random_operands(workload: Workload, seed: int) -> Operands:
    """Draw standard-normal operands. Weights are scaled so that outputs stay near one, as after normalisation. Integers
    are of the whole range of their types.

    The operands are rounded to the workload's dtype before the reference is computed from them. The error that is
    measured is then the kernel's alone.
    """
    rng = np.random.default_rng(seed)
    anchor, types = anchor_of(workload), Types.of(workload)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if np.issubdtype(np.dtype(dtype), np.floating):
            return normal(shape).astype(dtype)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.integers(low, high, shape, dtype, endpoint=True)

    depth = float(np.prod(anchor.weight_shape[1:]))
    weight = drawn(anchor.weight_shape, types.weight)
    if types.weight != WEIGHT:
        weight = (weight * np.float32(1 / np.sqrt(depth))).astype(types.weight)
    steps, size = operands(workload.epilogue), float(np.sqrt(depth) * _SPREAD)
    factors = _scales(workload, steps.count("scale"), size)
    extra = [_extra(step, workload, size, factors=factors, drawn=drawn) for step in steps]
    return Operands(drawn(anchor.data_shape, types.data), weight, tuple(extra))


def _scales(workload: Workload, count: int, size: float) -> Iterator[float]:
    """Yield by what each scale of an epilogue multiplies. The first makes products' sums, which are near `size`, values
    near one, which is what activations are for, and the last multiplies quantised results by `_STEPS`."""
    for i in range(count):
        first = 1 / size if i == 0 else 1.0
        yield first * (_STEPS if i == count - 1 and "quantize" in workload.epilogue else 1.0)


def _extra(
    step: str,
    workload: Workload,
    size: float,
    *,
    factors: Iterator[float],
    drawn: Callable[[tuple[int, ...], str], np.ndarray],
) -> np.ndarray:
    """Draw the operand of one step of an epilogue. Integers are as large as the sums, `size`, and the next of
    `factors` is that of a scale."""
    kind, shape = OPERANDS[step], anchor_of(workload).out_shape
    dtype = kind.dtype or Types.of(workload).extra
    if step == "quantize":
        return np.array([_ZERO], dtype)
    if step == "add_bytes":
        return np.array(_SUM_OF_STEPS if _adds_to_steps(workload.epilogue) else _SUM_OF_REALS, np.float32)
    sizes = {"channel": shape[1:2], "pixel": (shape[0], *shape[2:]), "image": shape, "single": (1,)}
    found = drawn(sizes[kind.shape], dtype)
    if step == "scale":
        return (found * np.float32(next(factors))).astype(dtype)
    if dtype == SUMS and step in ("offset", "window"):
        return (found * (size / -np.iinfo(dtype).min)).astype(dtype)
    return found


def conv2d(conv: Conv2d, data: np.ndarray, weight: np.ndarray, border: float = 0.0) -> np.ndarray:
    """Compute a direct convolution of NCHW data in float64, by one matrix product per kernel position and group. Values
    outside the image count as `border`."""
    top, left, bottom, right = conv.padding
    around = ((0, 0), (0, 0), (top, bottom), (left, right))
    x = np.pad(data.astype(np.float64), around, constant_values=border)
    n, _, oh, ow = conv.out_shape
    cg, kg = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    w = weight.astype(np.float64).reshape(conv.groups, kg, cg, *conv.kernel)
    out = np.zeros((n, conv.groups, kg, oh * ow))
    for r in range(conv.kernel[0]):
        for s in range(conv.kernel[1]):
            y0, x0 = r * conv.dilation[0], s * conv.dilation[1]
            rows = slice(y0, y0 + (oh - 1) * conv.strides[0] + 1, conv.strides[0])
            columns = slice(x0, x0 + (ow - 1) * conv.strides[1] + 1, conv.strides[1])
            patch = x[:, :, rows, columns].reshape(n, conv.groups, cg, oh * ow)
            if cg == kg == 1:
                out += w[None, :, :, 0, r, s, None] * patch
            else:
                out += np.matmul(w[None, ..., r, s], patch)
    return out.reshape(conv.out_shape)


def sums(workload: Workload, inputs: Operands) -> np.ndarray:
    """Compute what the anchor yields before its epilogue, in float64 and in plain layout."""
    anchor, data, weight = anchor_of(workload), inputs.data, inputs.weight
    if workload.dtype == BFLOAT16:
        data, weight = rounded(data), rounded(weight)
    given = zip(operands(workload.epilogue), inputs.extra, strict=True)
    border = next((float(array[0]) for token, array in given if token == "border"), 0.0)
    with np.errstate(invalid="ignore"):
        if isinstance(anchor, Conv2d):
            return conv2d(anchor, data, weight, border)
        return np.asarray(data.astype(np.float64) @ weight.astype(np.float64).T)


def reference(workload: Workload, inputs: Operands) -> np.ndarray:
    """Compute the workload's result, epilogue included, in float64 and in plain layout."""
    return apply_numpy(workload.epilogue, sums(workload, inputs), [e.astype(np.float64) for e in inputs.extra])


def same_integers(result: np.ndarray, expected: np.ndarray, steps: int = 1) -> bool:
    """Tell whether integers are right: sums in int32 are equal to the expected ones. Quantised results may be so many
    `steps` off in a thousandth of the values, or in one, since a number that lies between two steps may be rounded to
    either.
    """
    if result.dtype == SUMS or result.shape != expected.shape:
        return np.array_equal(result, expected)
    off = np.abs(result.astype(np.float64) - expected)
    return bool(off.max(initial=0.0) <= steps) and int(np.count_nonzero(off)) <= max(1, result.size // 1000)


def steps_off(workload: Workload, extra: Sequence[np.ndarray]) -> int:
    """Return how many steps of its result one rounding may make. If the result is quantised twice, steps of the first
    scale may be larger than those of the second."""
    if not _adds_to_steps(workload.epilogue):
        return 1
    given = dict(zip(operands(workload.epilogue), extra, strict=True))
    return max(1, ceil(given["add_bytes"][0]))


def _adds_to_steps(epilogue: Sequence[str]) -> bool:
    """Tell whether bytes are added to a quantised result."""
    return "add_bytes" in epilogue and "quantize" in epilogue[: epilogue.index("add_bytes")]


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute error divided by the largest absolute expected value. Values may be of any type.

    The error is infinite if the shapes differ, if a value is finite where the other is not, or if two infinities have
    different signs. Two NaNs count as equal. The error is computed in float64, or in float32 if `expected` is float32
    and `result` is floating-point and not wider.
    """
    if result.shape != expected.shape:
        return float("inf")
    wide = np.float32 if expected.dtype == np.float32 and result.dtype.itemsize <= 4 else np.float64
    if not np.issubdtype(result.dtype, np.floating):
        wide = np.float64
    result, expected = np.asarray(result, wide), np.asarray(expected, wide)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.subtract(result, expected)
    if not np.isfinite(_largest(difference)):
        same = (result == expected) | (np.isnan(result) & np.isnan(expected))
        difference, expected = np.where(same, 0.0, difference), expected[np.isfinite(expected)]
        if not np.isfinite(_largest(difference)):
            return float("inf")
    return _largest(difference) / (_largest(expected) or 1.0)


def _largest(values: np.ndarray) -> float:
    """Return the largest absolute value, or NaN if there is a NaN, without allocating an array of absolute values."""
    return abs(float(np.maximum(values.max(initial=0.0), -values.min(initial=0.0))))
