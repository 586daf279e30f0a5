"""The operator that suppresses overlapping boxes greedily, in order of their scores (NMS). Start at `Nms`.

Each row of scores (an image and a class) has candidates, which are cut into chunks. One launch compares the boxes of a
chunk with all boxes kept before, on all items of the device. The next launch walks the chunk, with one group per row:
the first box that is not suppressed is kept, the items suppress the boxes that overlap it, and so on. Rows whose scores
have fallen below the threshold do nothing. Outputs are filled with INVALID beforehand.

Memory and work grow with the boxes that are kept. A mask of all pairs would grow with the square of the candidates
(Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", section 3.1.1, and Faster
R-CNN's kernel have such masks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, function, held, inside, own, scratch, shared, when
from templates.operator import Operator, TensorSpec, View
from templates.space import Constraint, Knob, Space, Values
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.boxes import FIELDS, Box, numpy_overlap, numpy_prepared, overlap, prepared, store, stored
from vision_ops.selected import INVALID, invalidate
from vision_ops.sort_keys import argsorted

NO_THRESHOLD = float(np.finfo(np.float32).min)  # score threshold that all scores but the least float32 exceed


@dataclass(frozen=True)
class Nms(View):
    """A workload that compares `boxes` boxes in each of `batch` images, which has `classes` rows of scores.

    The inputs are the boxes (batch, boxes, 4), the scores (rows, boxes), and the indices of each row's best boxes in
    order (rows, candidates), INVALID where there are fewer than `candidates`. If `by_id`, a further input has a number
    for each box (batch, boxes), and boxes of different numbers do not suppress each other. The outputs are the indices
    of the kept boxes (rows, keep), INVALID behind the last, and their number (rows,).

    At most `keep` boxes whose scores exceed `score` are kept. A box that overlaps a kept one by more than `iou` is
    suppressed. `centre` says that boxes are centres and extents, not corners. Raises ValueError for sizes that do not
    fit.
    """

    op = "nms"

    batch: int
    classes: int
    boxes: int
    candidates: int
    keep: int
    iou: float
    score: float = NO_THRESHOLD
    centre: bool = False
    by_id: bool = False

    def __post_init__(self) -> None:
        if min(self.batch, self.classes, self.boxes, self.keep) < 0 or not 0 <= self.candidates <= self.boxes:
            raise ValueError(f"nms: sizes that do not fit: {self}")

    @property
    def rows(self) -> int:
        return self.batch * self.classes


class NmsOperator(Operator):
    """The operator that `Nms` describes, with a reference that goes through the boxes in order."""

    view = Nms

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        nms = Nms.of(workload)
        ids = (TensorSpec("ids", (nms.batch, nms.boxes), "float32"),)
        return (
            TensorSpec("boxes", (nms.batch, nms.boxes, 4), "float32"),
            TensorSpec("scores", (nms.rows, nms.boxes), "float32"),
            TensorSpec("order", (nms.rows, nms.candidates), "int32"),
            *(ids if nms.by_id else ()),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        nms = Nms.of(workload)
        return TensorSpec("kept", (nms.rows, nms.keep), "int32"), TensorSpec("count", (nms.rows,), "int32")

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw boxes in clusters around objects, as those of a detector are."""
        nms = Nms.of(workload)
        objects = rng.random((nms.batch, max(1, nms.boxes // 8), 2)) * 500
        of = rng.integers(0, objects.shape[1], (nms.batch, nms.boxes))
        middles = np.take_along_axis(objects, of[..., None], 1) + rng.standard_normal((nms.batch, nms.boxes, 2)) * 4
        extents = 20 + 20 * rng.random((nms.batch, nms.boxes, 2))
        parts = (middles, extents) if nms.centre else (middles - extents / 2, middles + extents / 2)
        scores = rng.random((nms.rows, nms.boxes), np.float32)
        inputs = [np.concatenate(parts, -1).astype(np.float32), scores, argsorted(scores, True)[:, : nms.candidates]]
        if nms.by_id:
            inputs.append(rng.integers(0, 5, (nms.batch, nms.boxes)).astype(np.float32))
        return tuple(np.ascontiguousarray(array) for array in inputs)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        nms = Nms.of(workload)
        kept, count = np.full((nms.rows, nms.keep), INVALID, np.int32), np.zeros(nms.rows, np.int32)
        for row in range(nms.rows):
            chosen = _numpy_row(nms, row, *inputs)
            kept[row, : len(chosen)], count[row] = chosen, len(chosen)
        return kept, count


def _numpy_row(
    nms: Nms, row: int, boxes: np.ndarray, scores: np.ndarray, order: np.ndarray, ids: np.ndarray | None = None
) -> list[int]:
    image = row // nms.classes
    places = order[row][order[row] >= 0]
    places = places[scores[row, places] > np.float32(nms.score)]
    box = Box(*(field[places] for field in numpy_prepared(boxes[image], nms.centre).fields))
    alive, chosen = np.ones(len(places), bool), list[int]()
    for i, place in enumerate(places):
        if not alive[i] or len(chosen) == nms.keep:
            continue
        chosen.append(int(place))
        hit = numpy_overlap(Box(*(field[i] for field in box.fields)), box, nms.iou)
        if ids is not None:
            hit &= ids[image][place] == ids[image][places]
        alive &= ~hit
    return chosen


class NmsTemplate(Template):
    """A template that cuts a row's candidates into chunks of `chunk`.

    Its other knobs: an item compares `boxes` boxes with the kept ones, and a group of such items has `items`. The group
    that walks a chunk has `walkers` items.
    """

    name = "vision.nms"
    op = "nms"

    def space(self, workload: Workload, target: Target) -> Space | None:
        nms, emitter = Nms.of(workload), Emitter.of(target)
        if not nms.rows or not nms.candidates or not nms.keep:
            return None
        # PoCL's compiler loses barriers of the walk. On a CPU there is only one walker, which needs none.
        walkers = 1 if emitter.on_processor else emitter.max_items
        knobs = (
            Knob("chunk", tuple(1 << p for p in range(6, 12))),
            Knob("boxes", (1, 4, 16, 32, 64, 128)),
            Knob("items", emitter.group_sizes(1, 8, 16, 32, 64, 128)),
            Knob("walkers", tuple(i for i in (1, 32, 64, 128, 256, 512) if i <= walkers)),
        )
        constraints = (
            Constraint("most of a chunk is empty", lambda v: v["chunk"] < 2 * max(nms.candidates, 64)),
            Constraint("more walkers than a chunk has boxes", lambda v: v["walkers"] <= v["chunk"]),
            Constraint("an item has more boxes than a chunk", lambda v: v["boxes"] <= v["chunk"]),
            Constraint("too much local memory", partial(_fits, emitter)),
        )
        return Space(self.name, knobs, constraints, _seeds(nms, emitter), partial(_features, nms))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        operator = NmsOperator()
        body = _Body(Nms.of(workload), Emitter.of(target), config.knobs)
        return function(operator.operands(workload), body)


def _fits(emitter: Emitter, v: Values) -> bool:
    return emitter.limits is None or 4 * v["chunk"] <= emitter.limits.local_memory_bytes


def _seeds(nms: Nms, emitter: Emitter) -> tuple[Values, ...]:
    most = emitter.max_items
    if emitter.on_processor:
        shapes = ((512, 64, 1, 1), (64, 16, 1, 1), (1024, 128, 1, 1))
    else:
        shapes = ((512, 1, 32, 128), (1024, 1, 64, 256), (64, 1, 32, 64))
    found = []
    for chunk, boxes, items, walkers in shapes:
        while chunk >= 2 * max(nms.candidates, 64):
            chunk //= 2
        found.append({"chunk": chunk, "boxes": boxes, "items": min(items, most), "walkers": min(walkers, most)})
    return tuple(found)


def _features(nms: Nms, v: Values) -> Mapping[str, float]:
    chunks = -(-nms.candidates // v["chunk"])
    return {"chunks": float(chunks), "testing_items": float(nms.rows * -(-v["chunk"] // v["boxes"]))}


class _Given(NamedTuple):
    """The inputs that suppression reads. `ids` is None where boxes of all kinds suppress each other."""

    boxes: Cells
    scores: Cells
    order: Cells
    ids: Cells | None


@dataclass(frozen=True)
class _Kept:
    """The outputs, and the kept boxes of each row, which are stored with their numbers."""

    index: Cells
    count: Cells
    box: Cells
    number: Cells


@dataclass(frozen=True)
class _Chunk:
    """The candidates of the current chunk, which are stored as prepared boxes with their numbers.

    `gone` is 1 for a box that is suppressed.
    """

    box: Cells
    number: Cells
    gone: Cells


@dataclass(frozen=True)
class _Body:
    """The code that emits the launches of one config."""

    nms: Nms
    emitter: Emitter
    v: Values

    def __call__(self, boxes: Cells, scores: Cells, order: Cells, *rest: Cells) -> None:
        nms, size = self.nms, self.v["chunk"]
        ids, (index, count) = (rest[0] if nms.by_id else None), rest[-2:]
        numbers = 1 if ids is None else nms.keep
        kept = _Kept(
            index, count, scratch("float32", nms.rows, FIELDS, nms.keep), scratch("float32", nms.rows, numbers)
        )
        held_now = _Chunk(
            scratch("float32", nms.rows, FIELDS, size),
            scratch("float32", nms.rows, 1 if ids is None else size),
            scratch("int32", nms.rows, size),
        )
        invalidate(self.emitter, index, count, rows=nms.rows, length=nms.keep, items=self.v["items"])
        with T.serial(0, -(-nms.candidates // size)) as chunk:
            self._test(_Given(boxes, scores, order, ids), kept, held_now, chunk)
            self._walk(order, kept, held_now, chunk)

    def _index(self, order: Cells, row: Any, at: Any) -> tuple[Any, Any]:
        """Return the index of the box at a position in the order, and whether the order has a box there.

        An invalid index is clipped to a valid one.
        """
        found = held(order[row, tirx.min(at, tirx.const(self.nms.candidates - 1, "int32"))])
        return inside(found, self.nms.boxes), found >= 0

    def _test(self, given: _Given, kept: _Kept, chunk: _Chunk, number: Any) -> None:
        """Emit the launch that prepares a chunk's boxes and compares them with the kept ones."""
        nms, v, (boxes, scores, order, ids) = self.nms, self.v, given
        parts = -(-v["chunk"] // v["boxes"])
        threshold = tirx.const(nms.score, "float32")
        with self.emitter.each(nms.rows * parts, v["items"]) as at:
            row, part = held(at // parts), held(at % parts)
            image, first = held(row // nms.classes), held(part * v["boxes"])
            best, any_left = self._index(order, row, number * v["chunk"])
            # Scores fall within a row: if the first of the chunk is too low, all others are, and the row is done.
            live = (kept.count[row] < nms.keep) & any_left & (scores[row, best] > threshold)
            gone = own("int32", v["boxes"])
            with T.serial(0, v["boxes"]) as b:
                gone[b] = tirx.const(1, "int32")
            with when(live):
                with T.serial(0, v["boxes"]) as b:
                    place = held(number * v["chunk"] + first + b)
                    index, meant = self._index(order, row, place)
                    raw = tuple(boxes[image, index, corner] for corner in range(4))
                    store(chunk.box, row, first + b, prepared(raw, nms.centre))
                    if ids is not None:
                        chunk.number[row, first + b] = ids[image, index]
                    valid = (place < nms.candidates) & meant & (scores[row, index] > threshold)
                    gone[b] = 1 - valid.astype("int32")
                with T.serial(0, kept.count[row]) as k:
                    box = stored(kept.box, row, k)
                    with T.serial(0, v["boxes"]) as b:
                        hit = overlap(box, stored(chunk.box, row, first + b), nms.iou)
                        gone[b] = gone[b] | self._same(
                            hit, kept.number, k, others=chunk.number, other=first + b, row=row
                        )
            with T.serial(0, v["boxes"]) as b:
                chunk.gone[row, first + b] = gone[b]

    def _same(self, hit: Any, numbers: Cells, at: Any, *, others: Cells, other: Any, row: Any) -> Any:
        if not self.nms.by_id:
            return hit
        return hit & (numbers[row, at] == others[row, other]).astype("int32")

    def _walk(self, order: Cells, kept: _Kept, chunk: _Chunk, number: Any) -> None:
        """Emit the launch that walks a chunk.

        It keeps the first box that is left, suppresses those that overlap it, and so on. Every item counts the kept
        boxes itself, so that none has to wait for the number. All items run equally many iterations of the loop with
        the barrier.
        """
        nms, size, walkers = self.nms, self.v["chunk"], self.v["walkers"]
        with self.emitter.launch(nms.rows, walkers) as (row, item):
            gone, count = shared("int32", size), own("int32")
            count[0] = kept.count[row]
            with T.serial(0, size // walkers) as step:
                gone[step * walkers + item] = chunk.gone[row, step * walkers + item]
            self.emitter.barrier()
            with T.serial(0, size) as i:
                alive = held((gone[i] == 0) & (count[0] < nms.keep))
                with when(alive):
                    box = stored(chunk.box, row, i)
                    with when(item == 0):
                        kept.index[row, count[0]], _ = self._index(order, row, number * size + i)
                        store(kept.box, row, count[0], box)
                        if nms.by_id:
                            kept.number[row, count[0]] = chunk.number[row, i]
                    left = held(size - 1 - i)  # boxes behind this one; an item takes every walkers-th of them
                    with T.serial(0, (left - item + walkers - 1) // walkers) as step:
                        j = held(i + 1 + item + step * walkers)
                        hit = overlap(box, stored(chunk.box, row, j), nms.iou)
                        gone[j] = gone[j] | self._same(hit, chunk.number, i, others=chunk.number, other=j, row=row)
                    count[0] = count[0] + 1
                self.emitter.barrier()
            with when(item == 0):
                kept.count[row] = count[0]


OPERATOR, TEMPLATE = NmsOperator(), NmsTemplate()
