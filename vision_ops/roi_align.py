"""ROIAlign: regions of feature maps, sampled by bilinear interpolation.

He et al.: Mask R-CNN, ICCV 2017, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.space import Values
from tuning_db.record import Workload
from vision_ops.kernels import Cells, Emitter, held, own, when
from vision_ops.regions import CHANNELS, Bin, RegionOperator, Regions, each_bin
from vision_ops.runs import RunTemplate

MODES = ("avg", "max")
_MOST_SAMPLES = 1024  # of a bin along an axis, where their number follows the region: absurd regions take no longer


@dataclass(frozen=True)
class RoiAlign(Regions):
    """`ratio`: samples of a bin along an axis (0: as many as a bin has pixels, rounded up). `aligned`: pixels' centres
    are at halves (ONNX's half_pixel; otherwise regions are one pixel large at least). "max" is that of the
    interpolated samples."""

    op = "roi_align"

    ratio: int = 0
    mode: str = "avg"
    aligned: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise ValueError(f"roi_align: no such mode: {self.mode!r} (known: {', '.join(MODES)})")
        if self.ratio < 0:
            raise ValueError(f"roi_align: the ratio is not negative: {self}")


class RoiAlignOperator(RegionOperator):
    """`RoiAlign` with its reference, sample by sample."""

    view = RoiAlign

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        roi, (data, regions, maps) = RoiAlign.of(workload), inputs
        out = np.zeros(roi.out_shape)
        for r in range(roi.rois):
            (y, rows), (x, columns) = (_numpy_samples(roi, regions[r], axis) for axis in (1, 0))
            if rows and columns:
                values = _numpy_bilinear(roi.numpy_map(data, maps[r]), y, x).reshape(
                    -1, roi.out_height, rows, roi.out_width, columns
                )
                out[r] = values.mean((2, 4)) if roi.mode == "avg" else values.max((2, 4))
        return (out,)


def _numpy_samples(roi: RoiAlign, region: np.ndarray, axis: int) -> tuple[np.ndarray, int]:
    """Where samples lie along an axis (0: x, 1: y), and how many there are to a bin; in float32, as kernels have it."""
    bins, f = (roi.out_width, roi.out_height)[axis], np.float32
    offset = f(0.5 if roi.aligned else 0.0)
    start, end = (f(region[at] * f(roi.scale)) - offset for at in (axis, axis + 2))
    size = end - start if roi.aligned else max(end - start, f(1))
    step = f(size) / f(bins)
    samples = roi.ratio or int(np.clip(np.ceil(step), 0, _MOST_SAMPLES))
    if not samples:
        return np.zeros(0, np.float32), 0
    places = [
        f(start + f(b) * step) + f(f(s) + f(0.5)) * step / f(samples) for b in range(bins) for s in range(samples)
    ]
    return np.array(places, np.float32), samples


def _numpy_bilinear(image: np.ndarray, ys: np.ndarray, xs: np.ndarray) -> np.ndarray:
    """(channels, len(ys), len(xs)): zero beyond a pixel outside."""
    weights = []
    for places, size in ((ys, image.shape[1]), (xs, image.shape[2])):
        matrix = np.zeros((len(places), size))
        for row, place in zip(matrix, places, strict=True):
            if -1.0 <= place <= size:
                place = max(float(place), 0.0)
                low = min(int(place), size - 1)
                part = place - low if low < size - 1 else 0.0
                row[low] += 1 - part
                row[min(low + 1, size - 1)] += part
        weights.append(matrix)
    return weights[0] @ image @ weights[1].T


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


@dataclass(frozen=True)
class _Axis:
    """One axis of a region: where it starts, the extent of a bin, how many samples a bin has."""

    start: Any
    step: Any
    samples: Any
    size: int  # of the map

    def place(self, part: Any, sample: Any) -> Any:
        whole = held(self.start + part.astype("float32") * self.step)
        inside = (sample.astype("float32") + _f(0.5)) * self.step / self.samples.astype("float32")
        return held(whole + inside)

    def inside(self, place: Any) -> Any:
        return (place >= _f(-1.0)) & (place <= _f(float(self.size)))

    def neighbours(self, place: Any) -> tuple[Any, Any, Any]:
        """Both pixels about a place, and the weight of the second; some pixel's for a place outside."""
        place = held(tirx.if_then_else(self.inside(place), tirx.max(place, _f(0.0)), _f(0.0)))
        low = held(tirx.min(place.astype("int32"), tirx.const(self.size - 1, "int32")))
        high = held(tirx.min(low + 1, tirx.const(self.size - 1, "int32")))
        return low, high, held(tirx.if_then_else(high > low, place - low.astype("float32"), _f(0.0)))


@dataclass(frozen=True)
class _Body:
    roi: RoiAlign
    emitter: Emitter
    v: Values

    def __call__(self, data: Cells, rois: Cells, maps: Cells, out: Cells) -> None:
        with each_bin(self.roi, self.emitter, self.v, maps) as at:
            self._bin(data, rois, out, at)

    def _axis(self, rois: Cells, region: Any, axis: int) -> _Axis:
        roi = self.roi
        bins, size = ((roi.out_width, roi.width), (roi.out_height, roi.height))[axis]
        offset = _f(0.5 if roi.aligned else 0.0)
        start = held(rois[region, axis] * _f(roi.scale) - offset)
        extent = held(rois[region, axis + 2] * _f(roi.scale) - offset - start)
        if not roi.aligned:
            extent = tirx.max(extent, _f(1.0))
        step = held(extent / _f(bins))
        if roi.ratio:
            return _Axis(start, step, tirx.const(roi.ratio, "int32"), size)
        # What is not a number, or too large to be an integer, must not be converted to one.
        usable = tirx.if_then_else(step > _f(0.0), tirx.min(step, _f(_MOST_SAMPLES)), _f(0.0))
        return _Axis(start, step, held(tirx.ceil(usable).astype("int32")), size)

    def _bin(self, data: Cells, rois: Cells, out: Cells, at: Bin) -> None:
        roi, many, first = self.roi, self.v["channels"], at.first
        rows, columns = self._axis(rois, at.region, 1), self._axis(rois, at.region, 0)
        sums = own("float32", many)
        empty = _f(0.0) if roi.mode == "avg" else tirx.min_value("float32")
        with T.serial(0, many) as c:
            sums[c] = empty
        with T.serial(0, rows.samples) as i, T.serial(0, columns.samples) as j:
            at_y, at_x = rows.place(at.y, i), columns.place(at.x, j)
            low_y, high_y, part_y = rows.neighbours(at_y)
            low_x, high_x, part_x = columns.neighbours(at_x)
            counts = held(rows.inside(at_y) & columns.inside(at_x))
            with T.serial(0, many) as c, when(first + c < roi.channels):

                def row(y: Any, channel: Any) -> Any:
                    left, right = data[at.map, channel, y, low_x], data[at.map, channel, y, high_x]
                    return left + (right - left) * part_x

                top, bottom = held(row(low_y, first + c)), held(row(high_y, first + c))
                value = held(tirx.if_then_else(counts, top + (bottom - top) * part_y, _f(0.0)))
                sums[c] = sums[c] + value if roi.mode == "avg" else tirx.max(sums[c], value)
        number = held(rows.samples * columns.samples)
        with T.serial(0, many) as c, when(first + c < roi.channels):
            result = sums[c] / number.astype("float32") if roi.mode == "avg" else sums[c]
            out[at.region, first + c, at.y, at.x] = tirx.if_then_else(number > 0, result, _f(0.0))


TEMPLATE = RunTemplate(RoiAlignOperator(), _Body, CHANNELS)
