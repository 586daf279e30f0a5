"""The operator ROIPool, which finds the largest pixel of every bin of a region. Start at `RoiPool`.

Regions begin and end at whole pixels. ONNX calls the operator MaxRoiPool, and torchvision calls it roi_pool.

Source: Girshick, "Fast R-CNN", ICCV 2015, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held, own, when
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.regions import CHANNELS, Bin, RegionOperator, Regions, each_bin
from vision_ops.runs import RunTemplate

_FAR = 1 << 20  # pixels; coordinates further out are clipped to this, and NaN becomes -_FAR


@dataclass(frozen=True)
class RoiPool(Regions):
    """A workload that computes the maxima of regions' bins.

    A region's corners are rounded to pixels, halves away from zero, and both pixels belong to the region. The result of
    a bin without any pixel of the map is 0.
    """

    op = "roi_pool"


class RoiPoolOperator(RegionOperator):
    """The operator that `RoiPool` describes, with a reference that computes it bin by bin."""

    view = RoiPool

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        roi, (data, regions, maps) = RoiPool.of(workload), inputs
        out = np.zeros(roi.out_shape)
        for r in range(roi.rois):
            image = roi.numpy_map(data, maps[r])
            rows, columns = (_numpy_bins(roi, regions[r], axis) for axis in (1, 0))
            for y, (top, bottom) in enumerate(rows):
                for x, (left, right) in enumerate(columns):
                    if top < bottom and left < right:
                        out[r, :, y, x] = image[:, top:bottom, left:right].max((1, 2))
        return (out,)


def _numpy_bins(roi: RoiPool, region: np.ndarray, axis: int) -> list[tuple[int, int]]:
    """Compute the first pixel and the end of every bin along an axis (0: x, 1: y), in float32 as kernels do."""
    bins, size = ((roi.out_width, roi.width), (roi.out_height, roi.height))[axis]
    ends = []
    for value in region[[axis, axis + 2]] * np.float32(roi.scale):
        with np.errstate(invalid="ignore"):
            whole = np.trunc(value + np.copysign(np.float32(0.5), value))
        ends.append(int(min(whole, _FAR)) if whole > -_FAR else -_FAR)
    step = np.float32(max(ends[1] - ends[0] + 1, 1)) / np.float32(bins)
    borders = [(np.floor(np.float32(b) * step), np.ceil(np.float32(b + 1) * step)) for b in range(bins)]
    return [(int(np.clip(low + ends[0], 0, size)), int(np.clip(high + ends[0], 0, size))) for low, high in borders]


@dataclass(frozen=True)
class _Body:
    roi: RoiPool
    emitter: Emitter
    v: Values

    def __call__(self, data: Cells, rois: Cells, maps: Cells, out: Cells) -> None:
        with each_bin(self.roi, self.emitter, self.v, maps) as at:
            self._bin(data, rois, out, at)

    def _bin(self, data: Cells, rois: Cells, out: Cells, at: Bin) -> None:
        roi, many = self.roi, self.v["channels"]
        top, rows = self._pixels(rois, at.region, 1, at.y)
        left, columns = self._pixels(rois, at.region, 0, at.x)
        best = own("float32", many)
        with T.serial(0, many) as c:
            best[c] = tirx.min_value("float32")
        with (
            T.serial(0, rows) as i,
            T.serial(0, columns) as j,
            T.serial(0, many) as c,
            when(at.first + c < roi.channels),
        ):
            best[c] = tirx.max(best[c], data[at.map, at.first + c, top + i, left + j])
        with T.serial(0, many) as c, when(at.first + c < roi.channels):
            value = tirx.if_then_else(rows * columns > 0, best[c], tirx.const(0, "float32"))
            out[at.region, at.first + c, at.y, at.x] = value

    def _pixels(self, rois: Cells, region: Any, axis: int, at: Any) -> tuple[Any, Any]:
        """Return the first pixel of a bin along an axis, and how many pixels the bin has."""
        roi = self.roi
        bins, size = ((roi.out_width, roi.width), (roi.out_height, roi.height))[axis]
        start, end = (self._whole(rois[region, corner]) for corner in (axis, axis + 2))
        extent = held(tirx.max(end - start + 1, tirx.const(1, "int32")))
        step = held(extent.astype("float32") / tirx.const(bins, "float32"))

        def border(value: Any) -> Any:
            inside = tirx.min(value.astype("int32") + start, tirx.const(size, "int32"))
            return held(tirx.max(inside, tirx.const(0, "int32")))

        low = border(tirx.floor(at.astype("float32") * step))
        high = border(tirx.ceil((at + 1).astype("float32") * step))
        return low, held(tirx.max(high - low, tirx.const(0, "int32")))

    def _whole(self, value: Any) -> Any:
        """Return the pixel of a corner. NaN, or a value too large for an integer, must not be converted to one."""
        far, half = tirx.const(_FAR, "float32"), tirx.const(0.5, "float32")
        scaled = held(value * tirx.const(self.roi.scale, "float32"))
        away = held(tirx.if_then_else(scaled < tirx.const(0, "float32"), scaled - half, scaled + half))
        usable = tirx.if_then_else(away > -far, tirx.min(away, far), -far)
        return held(tirx.trunc(usable).astype("int32"))


OPERATOR = RoiPoolOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, CHANNELS)
