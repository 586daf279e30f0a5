"""The operator that makes region proposals. Start at `Proposal`.

It moves anchors by the outputs of a head, clips them to the image, and rejects those that are too small. `argsort` and
`nms` then choose among the proposals. The rules are those of torchvision.

Source: Ren et al., "Faster R-CNN: Towards Real-Time Object Detection with Region Proposal Networks", NeurIPS 2015,
section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from tvm import tirx

from templates.kernels import Cells, Emitter, held
from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.decoding import (
    clipped,
    number,
    numpy_corners,
    numpy_sigmoid,
    random_anchors,
    sigmoid,
    store_corners,
)
from vision_ops.runs import PLACES, RunTemplate, each_run
from vision_ops.sweeps import Rows

TOO_SMALL = -1.0  # the score of a box that is too small
_MOST_GROWTH = log(1000 / 16)  # limit of the logarithm of an extent's growth, which an untrained head may exceed


@dataclass(frozen=True)
class Proposal(View):
    """A workload that makes region proposals.

    The inputs are the logits (batch, anchors, height * width), the moves (batch, anchors * 4, height * width) and the
    anchors' corners around the first position of the map (anchors, 4). The outputs are the boxes' corners
    (batch, height * width * anchors, 4) in the image, and their scores (batch, height * width * anchors), which are
    TOO_SMALL for boxes with an extent below `least`. `step_y` and `step_x` are the distances in pixels of the image
    between neighbouring positions. Raises ValueError for sizes that are not valid.
    """

    op = "proposal"

    batch: int
    anchors: int
    height: int
    width: int
    step_y: float
    step_x: float
    image_height: float
    image_width: float
    least: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.batch, self.anchors, self.height, self.width) < 1:
            raise ValueError(f"proposal: sizes are positive: {self}")
        if not min(self.step_y, self.step_x, self.image_height, self.image_width) > 0 or self.least < 0:
            raise ValueError(f"proposal: steps and the image are positive, the least extent is not negative: {self}")

    @property
    def places(self) -> int:
        return self.height * self.width

    @property
    def rows(self) -> Rows:
        return Rows(self.batch * self.anchors, self.places)


class ProposalOperator(Operator):
    """The operator that `Proposal` describes, with its reference in NumPy."""

    view = Proposal

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        rpn = Proposal.of(workload)
        return (
            TensorSpec("logits", (rpn.batch, rpn.anchors, rpn.places), "float32"),
            TensorSpec("moves", (rpn.batch, rpn.anchors * 4, rpn.places), "float32"),
            TensorSpec("anchors", (rpn.anchors, 4), "float32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        rpn = Proposal.of(workload)
        boxes = rpn.places * rpn.anchors
        return (
            TensorSpec("boxes", (rpn.batch, boxes, 4), "float32"),
            TensorSpec("scores", (rpn.batch, boxes), "float32"),
        )

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        rpn, (logits, moves, _) = Proposal.of(workload), self.inputs(workload)
        size = min(rpn.image_height, rpn.image_width)
        anchors = random_anchors(rng, rpn.anchors, size) - np.float32(size / 2)
        return rng.standard_normal(logits.shape, np.float32), rng.standard_normal(moves.shape, np.float32), anchors

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        rpn, (logits, moves, anchors) = Proposal.of(workload), inputs
        y, x = np.divmod(np.repeat(np.arange(rpn.places), rpn.anchors), rpn.width)
        corners = np.tile(anchors.astype(np.float64), (rpn.places, 1))
        size = corners[:, 2:] - corners[:, :2]
        middle = corners[:, :2] + size / 2 + np.stack([x * rpn.step_x, y * rpn.step_y], -1)
        every = moves.astype(np.float64).reshape(rpn.batch, rpn.anchors, 4, rpn.places)
        moved = every.transpose(0, 3, 1, 2).reshape(rpn.batch, -1, 4)
        extent = np.exp(np.minimum(moved[..., 2:], _MOST_GROWTH)) * size
        boxes = numpy_corners(moved[..., :2] * size + middle, extent)
        boxes = np.clip(boxes, 0, np.array([rpn.image_width, rpn.image_height] * 2))
        scores = numpy_sigmoid(logits).transpose(0, 2, 1).reshape(rpn.batch, -1)
        kept = (boxes[..., 2:] - boxes[..., :2] >= rpn.least).all(-1)
        return boxes, np.where(kept, scores, TOO_SMALL)


@dataclass(frozen=True)
class _Body:
    rpn: Proposal
    emitter: Emitter
    v: Values

    def __call__(self, logits: Cells, moves: Cells, anchors: Cells, boxes: Cells, scores: Cells) -> None:
        rpn = self.rpn
        with each_run(rpn.rows, self.emitter, self.v) as run:
            image, anchor = held(run.row // rpn.anchors), held(run.row % rpn.anchors)
            with run.each() as (_, place):
                x = self._axis(moves, anchors, image, anchor=anchor, place=place, axis=0)
                y = self._axis(moves, anchors, image, anchor=anchor, place=place, axis=1)
                at = held(place * rpn.anchors + anchor)
                store_corners(boxes, (image, at), (x[0], y[0], x[1], y[1]))
                least = number(rpn.least)
                large = (x[1] - x[0] >= least) & (y[1] - y[0] >= least)
                score = sigmoid(logits[image, anchor, place])
                scores[image, at] = tirx.if_then_else(large, score, number(TOO_SMALL))

    def _axis(self, moves: Cells, anchors: Cells, image: Any, *, anchor: Any, place: Any, axis: int) -> tuple[Any, Any]:
        """Return where a box begins and where it ends along x (axis 0) or y (axis 1)."""
        rpn = self.rpn
        index = (place // rpn.width) if axis else (place % rpn.width)
        step, most = ((rpn.step_x, rpn.image_width), (rpn.step_y, rpn.image_height))[axis]
        size = held(anchors[anchor, axis + 2] - anchors[anchor, axis])
        middle = anchors[anchor, axis] + size * number(0.5) + index.astype("float32") * number(step)
        centre = held(moves[image, anchor * 4 + axis, place] * size + middle)
        growth = tirx.min(moves[image, anchor * 4 + 2 + axis, place], number(_MOST_GROWTH))
        half = held(tirx.exp(growth) * size * number(0.5))
        return held(clipped(centre - half, 0.0, most)), held(clipped(centre + half, 0.0, most))


OPERATOR = ProposalOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, PLACES)
