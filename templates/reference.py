"""The float64 references that the results of anchors are checked against, and the random operands to compute them from.

Start at `random_operands` and `reference`. `relative_error` compares a result with its reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from templates.epilogue import apply_numpy, operands
from templates.workloads import Conv2d, anchor_of
from tuning_db.record import Workload


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
    """Draw standard-normal operands. Weights are scaled so that outputs stay near one, as after normalisation.

    The operands are rounded to the workload's dtype before the reference is computed from them. The error that is
    measured is then the kernel's alone.
    """
    rng = np.random.default_rng(seed)
    anchor = anchor_of(workload)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    weight = normal(anchor.weight_shape)
    weight *= np.float32(1 / np.sqrt(np.prod(anchor.weight_shape[1:])))
    extra = [
        normal((anchor.out_shape[1],)) if step == "bias" else normal(anchor.out_shape)
        for step in operands(workload.epilogue)
    ]
    data, weight, *extra = (a.astype(workload.dtype) for a in (normal(anchor.data_shape), weight, *extra))
    return Operands(data, weight, tuple(extra))


def conv2d(conv: Conv2d, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute a direct convolution of NCHW data in float64, by one matrix product per kernel position and group."""
    top, left, bottom, right = conv.padding
    x = np.pad(data.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
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
    anchor = anchor_of(workload)
    with np.errstate(invalid="ignore"):
        if isinstance(anchor, Conv2d):
            return conv2d(anchor, inputs.data, inputs.weight)
        return np.asarray(inputs.data.astype(np.float64) @ inputs.weight.astype(np.float64).T)


def reference(workload: Workload, inputs: Operands) -> np.ndarray:
    """Compute the workload's result, epilogue included, in float64 and in plain layout."""
    return apply_numpy(workload.epilogue, sums(workload, inputs), [e.astype(np.float64) for e in inputs.extra])


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
    return float(np.maximum(values.max(initial=0.0), -values.min(initial=0.0)))
