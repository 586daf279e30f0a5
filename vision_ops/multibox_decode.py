"""The operator that decodes the outputs of SSD's head to corners of boxes, with the best class of each.

Start at `MultiboxDecode`. This is the first half of GluonCV's MultiboxDetection; the second half, the suppression, is
`nms` with `by_id`.

Sources: Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016, section 2.2; Wang et al., "A Unified Optimization
Approach for CNN Model Inference on Integrated GPUs", section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held, own
from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.decoding import (
    clipped,
    number,
    numpy_corners,
    random_anchors,
    store_corners,
)
from vision_ops.runs import PLACES, Run, RunTemplate, each_run
from vision_ops.sweeps import Rows

NO_CLASS = -1  # class and score of a box whose scores do not exceed the threshold


@dataclass(frozen=True)
class MultiboxDecode(View):
    """A workload that decodes the outputs of SSD's head.

    The inputs are the probabilities (batch, classes, anchors), of which class 0 is the background, the moves
    (batch, anchors, 4) and the anchors' corners (anchors, 4). The outputs are the boxes' corners (batch, anchors, 4),
    the best score of each (batch, anchors), and its class (batch, anchors), counted without the background. Score and
    class are NO_CLASS if no score exceeds `threshold`. The moves are multiplied by `centre_scale` and `extent_scale`
    (SSD's variances). `clip` clips corners to 0 to 1. Raises ValueError for sizes that are not valid.
    """

    op = "multibox_decode"

    batch: int
    classes: int
    anchors: int
    threshold: float = 0.01
    centre_scale: float = 0.1
    extent_scale: float = 0.2
    clip: bool = True

    def __post_init__(self) -> None:
        if min(self.batch, self.anchors) < 0 or self.classes < 2:
            raise ValueError(f"multibox_decode: a background and a class at least, no negative size: {self}")

    @property
    def rows(self) -> Rows:
        return Rows(self.batch, self.anchors)


class MultiboxDecodeOperator(Operator):
    """The operator that `MultiboxDecode` describes, with its reference in NumPy."""

    view = MultiboxDecode

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        box = MultiboxDecode.of(workload)
        return (
            TensorSpec("probabilities", (box.batch, box.classes, box.anchors), "float32"),
            TensorSpec("moves", (box.batch, box.anchors, 4), "float32"),
            TensorSpec("anchors", (box.anchors, 4), "float32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        box = MultiboxDecode.of(workload)
        return (
            TensorSpec("boxes", (box.batch, box.anchors, 4), "float32"),
            TensorSpec("scores", (box.batch, box.anchors), "float32"),
            TensorSpec("ids", (box.batch, box.anchors), "int32"),
        )

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw inputs in which most boxes are background, as those of a detector are."""
        box = MultiboxDecode.of(workload)
        scores = rng.random((box.batch, box.classes, box.anchors)) ** 4
        scores[:, 0] += 1
        probabilities = (scores / scores.sum(1, keepdims=True)).astype(np.float32)
        moves = rng.standard_normal((box.batch, box.anchors, 4), np.float32)
        return probabilities, moves, random_anchors(rng, box.anchors, 1.0)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        box, (probabilities, moves, anchors) = MultiboxDecode.of(workload), inputs
        objects = np.where(np.isnan(probabilities), -np.inf, probabilities)[:, 1:]
        ids, best = objects.argmax(1).astype(np.int32), objects.max(1)
        found = best > np.float32(box.threshold)
        moved, corners = moves.astype(np.float64), anchors.astype(np.float64)
        size = corners[:, 2:] - corners[:, :2]
        centre = moved[..., :2] * box.centre_scale * size + (corners[:, 2:] + corners[:, :2]) / 2
        boxes = numpy_corners(centre, np.exp(moved[..., 2:] * box.extent_scale) * size)
        boxes = np.clip(boxes, 0, 1) if box.clip else boxes
        return boxes, np.where(found, best, NO_CLASS), np.where(found, ids, np.int32(NO_CLASS))


@dataclass(frozen=True)
class _Body:
    box: MultiboxDecode
    emitter: Emitter
    v: Values

    def __call__(self, scores: Cells, moves: Cells, anchors: Cells, boxes: Cells, best: Cells, ids: Cells) -> None:
        with each_run(self.box.rows, self.emitter, self.v) as run:
            self._classes(scores, best, ids, run)
            with run.each() as (_, at):
                store_corners(boxes, (run.row, at), self._corners(moves, anchors, run.row, at))

    def _classes(self, scores: Cells, best: Cells, ids: Cells, run: Run) -> None:
        top, kind = own("float32", self.v["places"]), own("int32", self.v["places"])
        with run.each() as (i, _):
            top[i], kind[i] = tirx.min_value("float32"), tirx.const(NO_CLASS, "int32")
        with T.serial(1, self.box.classes) as c, run.each() as (i, at):
            value = held(scores[run.row, c, at])
            better = held(value > top[i])
            top[i] = tirx.if_then_else(better, value, top[i])
            kind[i] = tirx.if_then_else(better, c - 1, kind[i])
        with run.each() as (i, at):
            found = held(top[i] > number(self.box.threshold))
            best[run.row, at] = tirx.if_then_else(found, top[i], number(NO_CLASS))
            ids[run.row, at] = tirx.if_then_else(found, kind[i], tirx.const(NO_CLASS, "int32"))

    def _corners(self, moves: Cells, anchors: Cells, row: Any, at: Any) -> tuple[Any, Any, Any, Any]:
        low, high = [], []
        for axis in (0, 1):
            start, end = anchors[at, axis], anchors[at, axis + 2]
            size = held(end - start)
            centre = moves[row, at, axis] * number(self.box.centre_scale) * size + (start + end) * number(0.5)
            half = tirx.exp(moves[row, at, axis + 2] * number(self.box.extent_scale)) * size * number(0.5)
            low.append(held(centre - half))
            high.append(held(centre + half))
        corners = (low[0], low[1], high[0], high[1])
        if not self.box.clip:
            return corners
        return tuple(clipped(corner, 0.0, 1.0) for corner in corners)


OPERATOR = MultiboxDecodeOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, PLACES)
