"""Extend onnx's reference evaluator with our own versions of operators that take minutes there or that it lacks. Start
at `evaluator_of`.

onnx.reference computes pooling pixel by pixel and compares boxes pair by pair in Python. The operators here give the
same results in seconds. They share nothing with the kernels that are built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19
from onnx.reference.ops.op_conv import Conv as OnnxConv
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25
from onnx.reference.ops.op_max_pool import MaxPool as OnnxMaxPool
from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression as OnnxNonMaxSuppression

from templates.reference import conv2d
from templates.workloads import Conv2d
from tuner.graph import write_old_rules
from tuner.graph.importers.onnx.evaluator_fixes import MENDED
from tuner.graph.importers.onnx.rules import opset_of

Pads = tuple[int, int, int, int]  # top, left, bottom, right
_DEQUANTIZES = 19  # the first operator set whose DequantizeLinear onnx's evaluator has


def evaluator_of(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return an evaluator of the model, which is changed in place (see write_old_rules)."""
    write_old_rules(model)
    old = [DequantizeLinear] if opset_of(model) < _DEQUANTIZES else []
    return ReferenceEvaluator(model, new_ops=[*_FAST, *MENDED, *old])


def _explicit_pads(
    auto_pad: str | None,
    pads: Sequence[int] | None,
    sizes: Sequence[int],
    *,
    reach: Sequence[int],
    strides: Sequence[int],
) -> Pads:
    """Return a node's padding as (top, left, bottom, right). `sizes` are the height and width of the input, and `reach`
    those of a window with its dilation."""
    if auto_pad in (None, "", "NOTSET"):
        top, left, bottom, right = pads or (0, 0, 0, 0)
        return top, left, bottom, right
    if auto_pad == "VALID":
        return 0, 0, 0, 0
    total = [
        max((math.ceil(size / stride) - 1) * stride + r - size, 0)
        for size, r, stride in zip(sizes, reach, strides, strict=True)
    ]
    (y, x), (more_y, more_x) = [t // 2 for t in total], [t - t // 2 for t in total]
    return (y, x, more_y, more_x) if auto_pad == "SAME_UPPER" else (more_y, more_x, y, x)


class Conv(OnnxConv):  # type: ignore[misc]
    """An operator that computes 2-D convolutions in float64 and leaves others to onnx."""

    op_domain = ""

    def _run(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **attributes: Any) -> tuple[Any, ...]:
        if x.ndim != 4:
            return super()._run(x, w, b, **attributes)
        strides = attributes.get("strides") or (1, 1)
        dilations = attributes.get("dilations") or (1, 1)
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
        pads = _explicit_pads(
            attributes.get("auto_pad"), attributes.get("pads"), x.shape[2:], reach=reach, strides=strides
        )
        group = attributes.get("group") or 1
        n, c, h, width = x.shape
        conv = Conv2d(n, c, h, width, w.shape[0], w.shape[2:], tuple(strides), pads, tuple(dilations), group)
        out = conv2d(conv, x, w)
        if b is not None:
            out += b.astype(np.float64).reshape(1, -1, 1, 1)
        return (out.astype(x.dtype),)


def _pool(x: np.ndarray, fill: float, attributes: Mapping[str, Any]) -> tuple[np.ndarray, Pads]:
    """Return the windows of the padded input as an array (N, C, OH, OW, KH, KW) in float64, and the padding as (top,
    left, bottom, right)."""
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides") or (1, 1)
    dilations = attributes.get("dilations") or (1, 1)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = _explicit_pads(attributes.get("auto_pad"), attributes.get("pads"), x.shape[2:], reach=reach, strides=strides)
    widths = []
    for axis in (0, 1):
        before, after, size = pads[axis], pads[axis + 2], x.shape[2 + axis]
        span = size + before + after - reach[axis]
        if attributes.get("ceil_mode"):
            last = math.ceil(span / strides[axis]) * strides[axis]
            if last >= size + before:  # a window must start inside the image or the padding before it
                last -= strides[axis]
            after += max(last - span, 0)
        widths.append((before, after))
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *widths), constant_values=fill)
    windows = sliding_window_view(padded, reach, axis=(2, 3))
    return windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]], pads


class MaxPool(OnnxMaxPool):  # type: ignore[misc]
    """An operator that computes 2-D maximum pooling. With the second output (indices), and for other ranks, it leaves
    the node to onnx."""

    op_domain = ""

    def _run(self, x: np.ndarray, **attributes: Any) -> tuple[Any, ...]:
        if x.ndim != 4 or len(self.output) > 1:
            return super()._run(x, **attributes)
        windows, _ = _pool(x, -np.inf, attributes)
        return (windows.max(axis=(4, 5)).astype(x.dtype),)


class AveragePool(AveragePool_19):  # type: ignore[misc]
    """An operator that computes 2-D average pooling in float64 and leaves other ranks to onnx."""

    op_domain = ""

    def _run(self, x: np.ndarray, **attributes: Any) -> tuple[Any, ...]:
        if x.ndim != 4:
            return super()._run(x, **attributes)
        windows, pads = _pool(x, 0.0, attributes)
        ones = np.ones((1, 1, *x.shape[2:]))
        if attributes.get("count_include_pad"):
            ones = np.pad(ones, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=1.0)
            attributes = {**attributes, "pads": (0, 0, 0, 0), "auto_pad": None}
            counted, _ = _pool(ones, 0.0, attributes)
            counted = counted[:, :, : windows.shape[2], : windows.shape[3]]
        else:
            counted, _ = _pool(ones, 0.0, attributes)
        return ((windows.sum(axis=(4, 5)) / counted.sum(axis=(4, 5))).astype(x.dtype),)


class NonMaxSuppression(OnnxNonMaxSuppression):  # type: ignore[misc]
    """An operator that compares each box that it keeps with all remaining boxes at once. Boxes with equal scores stay
    in their order."""

    op_domain = ""

    def _run(self, boxes: np.ndarray, scores: np.ndarray, *limits: np.ndarray | None, **attributes: Any) -> Any:
        most, overlap, threshold = (None if a is None else a.reshape(-1)[0] for a in (*limits, None, None, None)[:3])
        if attributes.get("center_point_box"):
            centre, half = boxes[..., :2], boxes[..., 2:] / 2
            boxes = np.concatenate([centre - half, centre + half], -1)
        low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
        found = [
            (image, kind, box)
            for image, kinds in enumerate(scores)
            for kind, values in enumerate(kinds)
            for box in _kept(
                low[image], high[image], values, most=int(most or 0), overlap=float(overlap or 0), threshold=threshold
            )
        ]
        return (np.array(found, np.int64).reshape(-1, 3),)


def _kept(
    low: np.ndarray, high: np.ndarray, scores: np.ndarray, *, most: int, overlap: float, threshold: float | None
) -> list[int]:
    """Return the indices of at most `most` boxes, the best first. No box overlaps one before it by more than `overlap`
    (intersection over union). Boxes whose score is not above `threshold` are left out."""
    order = np.argsort(-scores, kind="stable")
    if threshold is not None:
        order = order[scores[order] > threshold]
    area = np.prod(high - low, -1)
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        sides = np.minimum(high[best], high[order]) - np.maximum(low[best], low[order])
        common = np.prod(np.maximum(sides, 0), -1)
        union = area[best] + area[order] - common
        order = order[~(common > overlap * union)]
    return kept


class MaxRoiPool(OpRun):  # type: ignore[misc]
    """An operator that computes the maximum of each region's bins, which onnx.reference lacks. Corners are rounded to
    the nearest integer, halves away from zero. A bin without a pixel is 0."""

    op_domain = ""

    def _run(self, x: np.ndarray, rois: np.ndarray, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Any:
        out = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
        for pooled, (image, *corners) in zip(out, rois, strict=True):
            scaled = np.array(corners, np.float32) * np.float32(spatial_scale)
            left, top, right, bottom = (math.copysign(math.floor(abs(v) + 0.5), v) for v in scaled.tolist())
            rows = _bins(int(top), int(bottom), pooled_shape[0], x.shape[2])
            columns = _bins(int(left), int(right), pooled_shape[1], x.shape[3])
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    pixels = x[int(image), :, row, column]
                    if pixels.size:
                        pooled[:, i, j] = pixels.max((1, 2))
        return (out,)


def _bins(start: int, end: int, bins: int, size: int) -> list[slice]:
    """Return the pixels of each of a region's bins along an axis, as slices."""
    step = np.float32(max(end - start + 1, 1)) / np.float32(bins)
    borders = [(start + math.floor(b * step), start + math.ceil((b + 1) * step)) for b in range(bins)]
    return [slice(min(max(low, 0), size), min(max(high, 0), size)) for low, high in borders]


class DequantizeLinear(DequantizeLinear_25):  # type: ignore[misc]
    """Serves files of an operator set before 19, which onnx's evaluator has no version for."""


_FAST = (Conv, MaxPool, AveragePool, NonMaxSuppression, MaxRoiPool)
