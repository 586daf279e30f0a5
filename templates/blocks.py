"""Queries about the blocks of a function, and changes to them, that the default schedules of all targets share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.sym.pattern import detect_linear_equation

from templates.rewrite import nodes_of
from templates.stages import new_schedule

SCHEDULED = "tirx.is_scheduled"


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Tell whether a function is marked as scheduled (by `mark_scheduled`)."""
    return func.attrs is not None and SCHEDULED in func.attrs


def mark_scheduled(func: tirx.PrimFunc, original: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark a function as scheduled, and give it the attributes of the `original` that it was made from."""
    return func.with_attrs(dict(original.attrs or {})).with_attr(SCHEDULED, True)


def attempt(sch: Schedule, change: Callable[[Schedule], None]) -> Schedule:
    """Return the schedule after `change`, or the unchanged one if a primitive does not apply.

    TVM cannot be asked whether a primitive applies: it raises ScheduleError if not.
    """
    trial = sch.copy()
    try:
        change(trial)
    except ScheduleError:
        return sch
    return trial


def block_names(sch: Schedule) -> list[str]:
    """Return the names of the blocks: none if a function has no root block or only hand-written loops."""
    try:
        root = sch.get_sblock("root")
    except ScheduleError:
        return []
    return [sch.get(b).name_hint for b in sch.get_child_blocks(root)]


def kinds_of(sch: Schedule, block: Any) -> list[str]:
    """Return the kind of each loop of a block, "S" (spatial), "R" (reduction) or "?" (anything else).

    The list is empty unless the loops map one to one to the block's iterators.
    """
    node = sch.get(block)
    loops = sch.get_loops(block)
    if len(node.iter_vars) != len(loops):
        return []
    names = {0: "S", 2: "R"}
    return [names.get(int(v.iter_type), "?") for v in node.iter_vars]


def extents_of(sch: Schedule, loops: list[Any]) -> list[int]:
    """Return the extents of loops, with -1 for one that is not a constant."""
    found = []
    for loop in loops:
        extent = sch.get(loop).extent
        found.append(int(extent) if isinstance(extent, int | tirx.IntImm) else -1)
    return found


def inlined(func: tirx.PrimFunc, into_reduction: Callable[[Schedule, Any, Any], bool]) -> Schedule:
    """Inline element-wise stages into their only consumer.

    A reduction would compute the stage again for each of its terms. A stage is inlined into a reduction only if
    into_reduction(schedule, stage, reduction) is true.
    """
    sch = new_schedule(func.without_attr("global_symbol"))
    for name in block_names(sch):
        block = sch.get_sblock(name)
        consumers = sch.get_consumers(block)
        if set(kinds_of(sch, block)) != {"S"} or len(consumers) != 1:
            continue
        if "R" not in kinds_of(sch, consumers[0]) or into_reduction(sch, block, consumers[0]):
            sch = attempt(sch, partial(_inline, name=name))
    return sch


def _inline(sch: Schedule, name: str) -> None:
    sch.compute_inline(sch.get_sblock(name))


def fold_consumer(sch: Schedule, write: Any) -> None:
    """Inline an element-wise stage that follows a reduction into `write`, the stage that writes the sums.

    Nothing changes unless the reduction has exactly one consumer, and this is element-wise.
    """
    consumers = sch.get_consumers(write)
    if len(consumers) != 1 or set(kinds_of(sch, consumers[0])) != {"S"}:
        return
    values, results = (_iterations(sch, block) for block in (write, consumers[0]))
    if values != results:  # the consumer broadcasts: TVM fails on some of these
        return
    try:
        sch.reverse_compute_inline(consumers[0])
    except ScheduleError:
        return  # the consumer stays a stage of its own


def _iterations(sch: Schedule, block: Any) -> int:
    """Return how many values a stage without reduction computes."""
    return prod(int(v.dom.extent) for v in sch.get(block).iter_vars)


def loads_of(sch: Schedule, block: Any) -> list[Any]:
    """Return the buffer loads in a block's body."""
    return nodes_of(sch.get(block).body, tvm.ir.TensorLoad)


def is_condition(call: Any) -> bool:
    """Tell whether a call computes one of two operands, and leaves the other."""
    return str(getattr(call.op, "name", "")).endswith(".if_then_else")


def is_contiguous(sch: Schedule, block: Any, loop: int) -> bool:
    """Tell whether neighbouring iterations of a loop load neighbouring elements, or the same ones. Axes of one element
    at the end of a tensor do not count."""
    var = sch.get(block).iter_vars[loop].var
    for access in loads_of(sch, block):  # stores need no check: they are indexed by the block's own iterators
        indices = list(access.indices)
        sizes = list(access.source.shape)
        while indices and sizes[len(indices) - 1] == 1:
            indices.pop()
        if not indices:  # the buffer has one element
            continue
        *leading, last = indices
        if any(coefficient(index, var) != 0 for index in leading) or coefficient(last, var) not in (0, 1):
            return False
    return True


def coefficient(expression: Any, var: Any) -> int | None:
    """Return the coefficient of `var` in an expression, or None if it is not linear in `var`."""
    found = detect_linear_equation(expression, [var])
    factor = found[0] if found else None
    return int(factor) if isinstance(factor, int | tirx.IntImm) else None
