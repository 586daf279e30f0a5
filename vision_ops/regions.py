"""Pieces that ROIAlign and ROIPool share: both pool regions of feature maps into bins. Start at `Regions`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from templates.kernels import Cells, Emitter, held, inside
from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.runs import RunKnob
from vision_ops.sweeps import Rows


@dataclass(frozen=True)
class Regions(View):
    """A workload that pools regions of feature maps.

    The inputs are the maps (batch, channels, height, width), the regions (rois, 4) as x1, y1, x2, y2 in the image, and
    the index of each region's map (rois,). The output is (rois, channels, out_height, out_width). `scale` is the ratio
    of the map's size to the image's. Raises ValueError for sizes that are not valid.
    """

    batch: int
    channels: int
    height: int
    width: int
    rois: int
    out_height: int
    out_width: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if min(self.batch, self.channels, self.height, self.width, self.out_height, self.out_width) < 1:
            raise ValueError(f"{self.op}: sizes are positive: {self}")
        if self.rois < 0 or not self.scale > 0:
            raise ValueError(f"{self.op}: rois are not negative, the scale is positive: {self}")

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.rois, self.channels, self.out_height, self.out_width

    @property
    def rows(self) -> Rows:
        """Return the rows that a kernel's items divide among them: a row is a bin's channels."""
        return Rows(self.rois * self.out_height * self.out_width, self.channels)

    def numpy_map(self, data: np.ndarray, number: int) -> np.ndarray:
        """Return the map of this index in float64. An index that does not exist is clipped to one that does."""
        image: np.ndarray = data[np.clip(number, 0, self.batch - 1)].astype(np.float64)
        return image


def random_regions(rng: np.random.Generator, rois: int, height: float, width: float) -> np.ndarray:
    """Draw boxes (rois, 4), some of which reach out of the image."""
    extent = np.array([width, height], np.float64)
    middles = rng.random((rois, 2)) * extent
    halves = (0.02 + 0.3 * rng.random((rois, 2))) * extent
    return np.concatenate([middles - halves, middles + halves], 1).astype(np.float32)


class RegionOperator(Operator):
    """The base of the operators that pool regions, which defines their operands."""

    view: type[Regions]

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        regions = self.view.of(workload)
        return (
            TensorSpec("data", (regions.batch, regions.channels, regions.height, regions.width), "float32"),
            TensorSpec("rois", (regions.rois, 4), "float32"),
            TensorSpec("maps", (regions.rois,), "int32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("out", self.view.of(workload).out_shape, "float32"),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        regions = self.view.of(workload)
        data = rng.standard_normal((regions.batch, regions.channels, regions.height, regions.width), np.float32)
        boxes = random_regions(rng, regions.rois, regions.height / regions.scale, regions.width / regions.scale)
        return data, boxes, rng.integers(0, regions.batch, regions.rois).astype(np.int32)


# The knob that says how many channels an item pools over the same pixels.
CHANNELS = RunKnob("channels", 64, ((16, 1), (64, 1)), ((4, 64), (1, 128)))


@dataclass(frozen=True)
class Bin:
    """The bin (`y`, `x`) of a region that an item computes, for a few channels from `first` on.

    `map` is the index of the region's map.
    """

    region: Any
    map: Any
    first: Any
    y: Any
    x: Any


@contextmanager
def each_bin(regions: Regions, emitter: Emitter, v: Values, maps: Cells) -> Iterator[Bin]:
    """Emit a launch with an item for every bin and every `channels` channels, the value of the knob. Yields the bin.

    Indices in `maps` that do not exist are clipped.
    """
    many = v["channels"]
    parts, bins = -(-regions.channels // many), regions.out_height * regions.out_width
    with emitter.each(regions.rois * parts * bins, v["items"]) as at:
        region, first = held(at // (parts * bins)), held(at // bins % parts * many)
        y, x = held(at % bins // regions.out_width), held(at % regions.out_width)
        yield Bin(region, inside(maps[region], regions.batch), first, y, x)
