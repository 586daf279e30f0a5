"""This module registers serial templates of vision operators, in which one work-item processes a whole row.

A direct port of a processor's code would look like that. Wang et al., "A Unified Optimization Approach for CNN Model
Inference on Integrated GPUs", table 4, call it "before". vision.py and integrated_gpus.py compare our
templates with these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

import vision_ops
from templates.kernels import Cells, Emitter, function, held, own, scratch, when
from templates.operator import operator_named
from templates.space import Knob, Space
from templates.template import Template, register
from tuning_db.record import Config, Workload
from vision_ops.argsort import Argsort
from vision_ops.boxes import overlap, prepared
from vision_ops.compact import Compact
from vision_ops.nms import Nms
from vision_ops.selected import INVALID
from vision_ops.sort_keys import packed, place_of, ranked

assert vision_ops is not None  # imported for the operators that it registers
PREFIX = "serial."


class _Serial(Template):
    """A template that has one config, with one work-item for every row."""

    dtypes = ("float32", "int32")

    def __init__(self, op: str, body: Callable[..., Callable[..., None]]) -> None:
        self.op, self.name, self._body = op, f"{PREFIX}{op}", body

    def space(self, workload: Workload, target: Target) -> Space | None:
        return Space(self.name, (Knob("items", (1,)),), (), ({"items": 1},), lambda _: {"items": 1.0})

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        return function(operator_named(self.op).operands(workload), self._body(workload, Emitter.of(target)))


def _number(value: int) -> Any:
    return tirx.const(value, "int32")


def _argsort(workload: Workload, emitter: Emitter) -> Callable[..., None]:
    """Return the body of a merge sort, which starts with single values."""
    sort = Argsort.of(workload)

    def body(data: Cells, *rest: Cells) -> None:
        indices, keys = rest[-1], scratch("uint64", 2, sort.rows, sort.length)
        with emitter.launch(sort.rows) as (row, _):
            length = held(rest[1][row]) if sort.counted else sort.length
            with T.serial(0, sort.top) as i:
                indices[row, i] = _number(INVALID)
            with T.serial(0, length) as i:
                at = held(rest[0][row, i]) if sort.counted else i
                keys[0, row, i] = packed(ranked(data[row, at], sort.descending), at)
            passes = max(sort.length - 1, 0).bit_length()
            for p in range(passes):
                _merge(keys, row, p % 2, 1 << p, sort.length, length)
            with T.serial(0, tirx.min(length, _number(sort.top))) as i:
                indices[row, i] = place_of(keys[passes % 2, row, i])

    return body


def _merge(keys: Cells, row: Any, source: int, width: int, most: int, length: Any) -> None:
    left, right = own("int32"), own("int32")
    with T.serial(0, (length + 2 * width - 1) // (2 * width)) as pair:
        start = held(pair * 2 * width)
        middle = held(tirx.min(start + width, length))
        end = held(tirx.min(start + 2 * width, length))
        left[0], right[0] = start, middle
        with T.serial(0, end - start) as step:
            first = held(keys[source, row, tirx.min(left[0], _number(most - 1))])
            second = held(keys[source, row, tirx.min(right[0], _number(most - 1))])
            takes = held((left[0] < middle) & ((right[0] >= end) | (first < second)))
            keys[1 - source, row, start + step] = tirx.if_then_else(takes, first, second)
            left[0] = left[0] + takes.astype("int32")
            right[0] = right[0] + 1 - takes.astype("int32")


def _nms(workload: Workload, emitter: Emitter) -> Callable[..., None]:
    """Return the body that compares every kept box with all boxes after it."""
    nms = Nms.of(workload)

    def body(boxes: Cells, scores: Cells, order: Cells, kept: Cells, count: Cells) -> None:
        gone = scratch("int32", nms.rows, nms.candidates)
        with emitter.launch(nms.rows) as (row, _):
            image = row // nms.classes
            with T.serial(0, nms.keep) as i:
                kept[row, i] = _number(INVALID)
            with T.serial(0, nms.candidates) as i:
                at = held(order[row, i])
                low = scores[row, tirx.max(at, _number(0))] <= tirx.const(nms.score, "float32")
                gone[row, i] = ((at < 0) | low).astype("int32")
            count[row] = _number(0)
            with T.serial(0, nms.candidates) as i, when((gone[row, i] == 0) & (count[row] < nms.keep)):
                place = held(order[row, i])
                kept[row, count[row]] = place
                count[row] = count[row] + 1
                box = prepared(tuple(boxes[image, place, c] for c in range(4)), nms.centre)
                with T.serial(0, nms.candidates - i - 1) as step:
                    j = held(i + 1 + step)
                    other = held(tirx.max(order[row, j], _number(0)))
                    raw = tuple(boxes[image, other, c] for c in range(4))
                    gone[row, j] = gone[row, j] | overlap(box, prepared(raw, nms.centre), nms.iou)

    return body


def _compact(workload: Workload, emitter: Emitter) -> Callable[..., None]:
    compact = Compact.of(workload)

    def body(scores: Cells, indices: Cells, count: Cells) -> None:
        with emitter.launch(compact.rows) as (row, _):
            count[row] = _number(0)
            with T.serial(0, compact.length) as i:
                indices[row, i] = _number(INVALID)
            with T.serial(0, compact.length) as i, when(scores[row, i] > tirx.const(compact.threshold, "float32")):
                indices[row, count[row]] = i
                count[row] = count[row] + 1

    return body


SERIAL = {op: register(_Serial(op, body)) for op, body in (("argsort", _argsort), ("nms", _nms), ("compact", _compact))}


def serial_config(workload: Workload) -> Config | None:
    """Return the config that computes a workload with one work-item for every row.

    It is None for operators that have no serial template.
    """
    template = SERIAL.get(workload.op)
    return None if template is None else Config(template.name, {"items": 1})
