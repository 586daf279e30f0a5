"""The operator that makes SSD's anchors, which are boxes of several shapes around every position of a map.

Start at `MultiboxPrior`. GluonCV has it under the same name.

Sources: Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016, section 2.2; Wang et al., "A Unified Optimization
Approach for CNN Model Inference on Integrated GPUs", section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held
from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.decoding import clipped, number, numpy_corners, store_corners
from vision_ops.runs import PLACES, RunTemplate, each_run
from vision_ops.sweeps import Rows


@dataclass(frozen=True)
class MultiboxPrior(View):
    """A workload that makes SSD's anchors.

    The input is the anchors' extents (shapes, 2), as width and height (see `prior_shapes`). The output is their corners
    (height * width * shapes, 4), as x1, y1, x2, y2. The centre of a position is (index + offset) * step along an axis.
    A step of 0 makes the map cover 0 to 1. `clip` clips corners to 0 to 1. Raises ValueError for sizes that are not
    valid.
    """

    op = "multibox_prior"

    height: int
    width: int
    shapes: int
    step_y: float = 0.0
    step_x: float = 0.0
    offset_y: float = 0.5
    offset_x: float = 0.5
    clip: bool = False

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.shapes) < 1 or min(self.step_y, self.step_x) < 0:
            raise ValueError(f"multibox_prior: sizes are positive, steps are not negative: {self}")

    @property
    def rows(self) -> Rows:
        return Rows(1, self.height * self.width)

    @property
    def steps(self) -> tuple[float, float]:
        """Return the steps along y and x."""
        return self.step_y or 1 / self.height, self.step_x or 1 / self.width


def prior_shapes(sizes: Sequence[float], ratios: Sequence[float], height: int, width: int) -> np.ndarray:
    """Compute the extents of anchors, (sizes + ratios - 1, 2), as width and height.

    Every size comes with the first ratio, which is taken to be 1, then the first size comes with the other ratios. On a
    map that is not square, sizes are shares of its height.
    """
    roots = [(size, 1.0) for size in sizes] + [(sizes[0], ratio) for ratio in ratios[1:]]
    shapes = [(size * height / width * np.sqrt(ratio), size / np.sqrt(ratio)) for size, ratio in roots]
    return np.array(shapes, np.float32)


class MultiboxPriorOperator(Operator):
    """The operator that `MultiboxPrior` describes, with its reference in NumPy."""

    view = MultiboxPrior

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("extents", (MultiboxPrior.of(workload).shapes, 2), "float32"),)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        prior = MultiboxPrior.of(workload)
        return (TensorSpec("anchors", (prior.height * prior.width * prior.shapes, 4), "float32"),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return ((0.05 + 0.3 * rng.random((MultiboxPrior.of(workload).shapes, 2))).astype(np.float32),)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        prior, (extents,) = MultiboxPrior.of(workload), inputs
        y = (np.arange(prior.height) + prior.offset_y) * prior.steps[0]
        x = (np.arange(prior.width) + prior.offset_x) * prior.steps[1]
        rows, columns = np.meshgrid(y, x, indexing="ij")
        centre = np.stack([columns, rows], -1).reshape(-1, 1, 2)
        corners = numpy_corners(centre, extents.astype(np.float64)).reshape(-1, 4)
        return (np.clip(corners, 0, 1) if prior.clip else corners,)


@dataclass(frozen=True)
class _Body:
    prior: MultiboxPrior
    emitter: Emitter
    v: Values

    def __call__(self, extents: Cells, anchors: Cells) -> None:
        prior = self.prior
        with each_run(prior.rows, self.emitter, self.v) as run, run.each() as (_, place):
            row, column = place // prior.width, place % prior.width
            y = held((row.astype("float32") + number(prior.offset_y)) * number(prior.steps[0]))
            x = held((column.astype("float32") + number(prior.offset_x)) * number(prior.steps[1]))
            with T.serial(0, prior.shapes) as shape:
                wide, high = (held(extents[shape, i] * number(0.5)) for i in (0, 1))
                corners = x - wide, y - high, x + wide, y + high
                if prior.clip:
                    corners = tuple(clipped(corner, 0.0, 1.0) for corner in corners)
                store_corners(anchors, (place * prior.shapes + shape,), corners)


OPERATOR = MultiboxPriorOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, PLACES)
