"""The operator that decodes the output of YOLO's head to corners of boxes and scores. Start at `YoloDecode`.

Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement", 2018, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held, own
from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.decoding import (
    number,
    numpy_corners,
    numpy_sigmoid,
    sigmoid,
    store_corners,
)
from vision_ops.runs import PLACES, Run, RunTemplate, each_run
from vision_ops.sweeps import Rows

BOX = 5  # channels of an anchor before its classes: x, y, width, height, objectness


@dataclass(frozen=True)
class YoloDecode(View):
    """A workload that decodes the output of YOLO's head.

    The inputs are the head's output (batch, anchors * (5 + classes), height * width) and the anchors' extents (anchors,
    2), as width and height in pixels. The outputs are the boxes' corners (batch, height * width * anchors, 4) in
    pixels, and their scores (batch, classes, height * width * anchors). `step` is the distance in pixels of the image
    between neighbouring positions of the map. Raises ValueError for sizes that are not positive.
    """

    op = "yolo_decode"

    batch: int
    anchors: int
    classes: int
    height: int
    width: int
    step: float

    def __post_init__(self) -> None:
        if min(self.batch, self.anchors, self.classes, self.height, self.width) < 1 or not self.step > 0:
            raise ValueError(f"yolo_decode: sizes and the step are positive: {self}")

    @property
    def places(self) -> int:
        return self.height * self.width

    @property
    def rows(self) -> Rows:
        return Rows(self.batch * self.anchors, self.places)


class YoloDecodeOperator(Operator):
    """The operator that `YoloDecode` describes, with its reference in NumPy."""

    view = YoloDecode

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        yolo = YoloDecode.of(workload)
        return (
            TensorSpec("head", (yolo.batch, yolo.anchors * (BOX + yolo.classes), yolo.places), "float32"),
            TensorSpec("extents", (yolo.anchors, 2), "float32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        yolo = YoloDecode.of(workload)
        boxes = yolo.places * yolo.anchors
        return (
            TensorSpec("boxes", (yolo.batch, boxes, 4), "float32"),
            TensorSpec("scores", (yolo.batch, yolo.classes, boxes), "float32"),
        )

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        head, extents = self.inputs(workload)
        return (
            rng.standard_normal(head.shape, np.float32),
            (10 + 200 * rng.random(extents.shape)).astype(np.float32),
        )

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        yolo, (head, extents) = YoloDecode.of(workload), inputs
        every = head.astype(np.float64).reshape(yolo.batch, yolo.anchors, BOX + yolo.classes, yolo.places)
        values = every.transpose(0, 3, 1, 2).reshape(yolo.batch, -1, BOX + yolo.classes)
        y, x = np.divmod(np.repeat(np.arange(yolo.places), yolo.anchors), yolo.width)
        centre = (numpy_sigmoid(values[..., :2]) + np.stack([x, y], -1)) * yolo.step
        size = np.exp(values[..., 2:4]) * np.tile(extents.astype(np.float64), (yolo.places, 1))
        scores = numpy_sigmoid(values[..., 4:5]) * numpy_sigmoid(values[..., BOX:])
        return numpy_corners(centre, size), scores.transpose(0, 2, 1)


class _Place(NamedTuple):
    """The place of a row's values in the head: the image, the anchor, and the first of its channels."""

    image: Any
    anchor: Any
    first: Any


@dataclass(frozen=True)
class _Body:
    yolo: YoloDecode
    emitter: Emitter
    v: Values

    def __call__(self, head: Cells, extents: Cells, boxes: Cells, scores: Cells) -> None:
        yolo = self.yolo
        with each_run(yolo.rows, self.emitter, self.v) as run:
            image, anchor = held(run.row // yolo.anchors), held(run.row % yolo.anchors)
            at = _Place(image, anchor, held(anchor * (BOX + yolo.classes)))
            self._boxes(head, extents, boxes, run=run, at=at)
            self._scores(head, scores, run, at=at)

    def _boxes(self, head: Cells, extents: Cells, boxes: Cells, *, run: Run, at: _Place) -> None:
        yolo, (image, anchor, first) = self.yolo, at
        half = [held(extents[anchor, axis] * number(0.5)) for axis in (0, 1)]
        with run.each() as (_, place):
            low, high = [], []
            for axis, index in enumerate((place % yolo.width, place // yolo.width)):
                inside = sigmoid(head[image, first + axis, place])
                centre = held((inside + index.astype("float32")) * number(yolo.step))
                reach = held(tirx.exp(head[image, first + 2 + axis, place]) * half[axis])
                low.append(centre - reach)
                high.append(centre + reach)
            store_corners(boxes, (image, place * yolo.anchors + anchor), (low[0], low[1], high[0], high[1]))

    def _scores(self, head: Cells, scores: Cells, run: Run, *, at: _Place) -> None:
        yolo, (image, anchor, first) = self.yolo, at
        anything = own("float32", self.v["places"])
        with run.each() as (i, place):
            anything[i] = sigmoid(head[image, first + 4, place])
        with T.serial(0, yolo.classes) as c, run.each() as (i, place):
            likely = sigmoid(head[image, first + BOX + c, place])
            scores[image, c, place * yolo.anchors + anchor] = anything[i] * likely


OPERATOR = YoloDecodeOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, PLACES)
