"""The operator ROIAlign, which samples regions of feature maps by bilinear interpolation. Start at `RoiAlign`.

Source: He et al., "Mask R-CNN", ICCV 2017, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held, own, when
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.regions import CHANNELS, Bin, RegionOperator, Regions, each_bin
from vision_ops.runs import RunTemplate

MODES = ("avg", "max", "max_corner")
_MOST_SAMPLES = 1024  # samples of a bin along an axis at most, where the region sets their number: it may be absurd


@dataclass(frozen=True)
class RoiAlign(Regions):
    """The attributes that a ROIAlign workload has beside those of `Regions`.

    `ratio` is the number of samples of a bin along an axis; 0 takes as many as a bin has pixels, rounded up. `aligned`
    puts pixels' centres at halves (ONNX's half_pixel). Without it regions are at least one pixel large. `mode` says
    what a bin's result is: the mean of its interpolated samples ("avg"), the largest of them ("max"), or the largest of
    the pixels around its samples, each times its weight in the interpolation ("max_corner", which is ONNX's max).
    Raises ValueError for an unknown mode and a negative ratio.
    """

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
    """The operator that `RoiAlign` describes, with a reference that computes it sample by sample."""

    view = RoiAlign

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        roi, (data, regions, maps) = RoiAlign.of(workload), inputs
        out = np.zeros(roi.out_shape)
        for r in range(roi.rois):
            (y, rows), (x, columns) = (_numpy_samples(roi, regions[r], axis) for axis in (1, 0))
            if rows and columns:
                sampled = _numpy_corners if roi.mode == "max_corner" else _numpy_bilinear
                values = sampled(roi.numpy_map(data, maps[r]), y, x).reshape(
                    -1, roi.out_height, rows, roi.out_width, columns
                )
                out[r] = values.mean((2, 4)) if roi.mode == "avg" else values.max((2, 4))
        return (out,)


def _numpy_samples(roi: RoiAlign, region: np.ndarray, axis: int) -> tuple[np.ndarray, int]:
    """Compute where samples lie along an axis (0: x, 1: y), and how many a bin has, in float32 as kernels do."""
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


def _numpy_neighbours(places: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the first and the second pixel next to each position, and their weights.

    The weights are zero for positions more than a pixel outside of the map.
    """
    inside = (places >= -1.0) & (places <= size)
    within = np.where(inside, np.maximum(places.astype(np.float64), 0.0), 0.0)
    low = np.minimum(within.astype(int), size - 1)
    part = np.where(low < size - 1, within - low, 0.0)
    return [(low, inside * (1 - part)), (np.minimum(low + 1, size - 1), inside * part)]


def _numpy_corners(image: np.ndarray, ys: np.ndarray, xs: np.ndarray) -> np.ndarray:
    """Return the largest of the four pixels around each position, each times its weight.

    The result is (channels, len(ys), len(xs)).
    """
    rows, columns = _numpy_neighbours(ys, image.shape[1]), _numpy_neighbours(xs, image.shape[2])
    corners = [image[:, y][:, :, x] * np.outer(down, right) for y, down in rows for x, right in columns]
    return np.asarray(np.max(corners, axis=0))


def _numpy_bilinear(image: np.ndarray, ys: np.ndarray, xs: np.ndarray) -> np.ndarray:
    """Compute an image at each position by interpolation: (channels, len(ys), len(xs)).

    A value is zero more than a pixel outside of the image.
    """
    weights = []
    for places, size in ((ys, image.shape[1]), (xs, image.shape[2])):
        matrix = np.zeros((len(places), size))
        for pixel, weight in _numpy_neighbours(places, size):
            matrix[np.arange(len(places)), pixel] += weight
        weights.append(matrix)
    return weights[0] @ image @ weights[1].T


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


@dataclass(frozen=True)
class _Axis:
    """An axis of a region that begins at `start`, has bins of extent `step`, and takes `samples` samples per bin."""

    start: Any
    step: Any
    samples: Any
    size: int  # pixels of the map along this axis

    def place(self, part: Any, sample: Any) -> Any:
        whole = held(self.start + part.astype("float32") * self.step)
        inside = (sample.astype("float32") + _f(0.5)) * self.step / self.samples.astype("float32")
        return held(whole + inside)

    def inside(self, place: Any) -> Any:
        return (place >= _f(-1.0)) & (place <= _f(float(self.size)))

    def neighbours(self, place: Any) -> tuple[Any, Any, Any]:
        """Return both pixels around a position and the weight of the second.

        For a position outside of the map these are some pixels that exist.
        """
        place = held(tirx.if_then_else(self.inside(place), tirx.max(place, _f(0.0)), _f(0.0)))
        low = held(tirx.min(place.astype("int32"), tirx.const(self.size - 1, "int32")))
        high = held(tirx.min(low + 1, tirx.const(self.size - 1, "int32")))
        return low, high, held(tirx.if_then_else(high > low, place - low.astype("float32"), _f(0.0)))


def _interpolated(corners: list[list[Any]], part_y: Any, part_x: Any) -> Any:
    """Compute the value between four pixels. `corners` are two rows of two; the parts are distances from the first."""
    top, bottom = (held(left + (right - left) * part_x) for left, right in corners)
    return top + (bottom - top) * part_y


def _largest_corner(corners: list[list[Any]], part_y: Any, part_x: Any) -> Any:
    """Return the largest of four pixels, each times its weight."""
    down, right = (_f(1.0) - part_y, part_y), (_f(1.0) - part_x, part_x)
    weighted = [
        pixel * (y * x) for row, y in zip(corners, down, strict=True) for pixel, x in zip(row, right, strict=True)
    ]
    return reduce(tirx.max, weighted)


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
        # A value that is NaN, or too large for an integer, must not be converted to one.
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

                def pixel(y: Any, x: Any, channel: Any) -> Any:
                    return data[at.map, channel, y, x]

                corners = [[held(pixel(y, x, first + c)) for x in (low_x, high_x)] for y in (low_y, high_y)]
                sampled = _largest_corner if roi.mode == "max_corner" else _interpolated
                value = held(tirx.if_then_else(counts, sampled(corners, part_y, part_x), _f(0.0)))
                sums[c] = sums[c] + value if roi.mode == "avg" else tirx.max(sums[c], value)
        number = held(rows.samples * columns.samples)
        with T.serial(0, many) as c, when(first + c < roi.channels):
            result = sums[c] / number.astype("float32") if roi.mode == "avg" else sums[c]
            out[at.region, first + c, at.y, at.x] = tirx.if_then_else(number > 0, result, _f(0.0))


OPERATOR = RoiAlignOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, CHANNELS)
