"""The schedule of functions that compute every row of their result by itself, as softmax and normalisations do.

Start at `schedule_rows`. All stages of a row are computed one after the other while the row is in a cache, and the rows
are computed in parallel. The default schedule would go through memory once for each stage instead.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from templates.blocks import block_names, extents_of, is_contiguous, kinds_of
from templates.cpu.overlap import with_overlapping_vectors
from templates.cpu.stages import PARALLEL_VALUES

_LEAST_ROWS = 4
_MAX_ROW_VALUES = 1 << 14  # of all stages of a row, 64 KB
_GROUPS = (4, 3, 2)  # rows that are computed together, as a processor then overlaps the chains of their sums
_MAX_GROUP_VALUES = 1 << 11  # of all stages of a group, 8 KB


def schedule_rows(sch: Schedule, lanes: int) -> tirx.PrimFunc | None:
    """Return the scheduled version of a function whose stages before the last are read by rows. Return None for other
    functions, and for those of a single stage."""
    names = block_names(sch)
    if len(names) < 2 or not any("R" in kinds_of(sch, sch.get_sblock(name)) for name in names):
        return None
    last = sch.get_sblock(names[-1])
    kinds, extents = kinds_of(sch, last), extents_of(sch, sch.get_loops(last))
    if set(kinds) != {"S"} or -1 in extents or len(sch.get_consumers(last)):
        return None
    for depth in range(len(extents) - 1, 0, -1):
        if prod(extents[:depth]) >= _LEAST_ROWS:
            for found in _by_rows(sch, names, depth):
                try:
                    _vectorise_all(found, names, lanes, len(extents) - depth)
                except ScheduleError:  # the rows of a group do not lie along one axis
                    continue
                return with_overlapping_vectors(found.mod["main"])
    return None


def _by_rows(sch: Schedule, names: list[str], depth: int) -> list[Schedule]:
    """Return schedules with all stages computed in the outermost `depth` loops of the last: one for a few rows at once,
    if they are short, and one for single rows. There are none if a stage would compute a value for several rows, or
    cannot be moved."""
    single = _by_groups(sch, names, depth, 1)
    if single is None:
        return []
    found, rows, values = single
    group = next((n for n in _GROUPS if rows % n == 0 and values * n <= _MAX_GROUP_VALUES), 1)
    grouped = _by_groups(sch, names, depth, group) if group > 1 else None
    return [found] if grouped is None else [grouped[0], found]


def _by_groups(sch: Schedule, names: list[str], depth: int, group: int) -> tuple[Schedule, int, int] | None:
    """Return the schedule for groups of rows, the number of groups, and the values of all stages of one. Return None
    where `_by_rows` has none."""
    sch = sch.copy()
    loops = sch.get_loops(sch.get_sblock(names[-1]))
    row = sch.fuse(*loops[:depth]) if depth > 1 else loops[0]
    if group > 1:
        row, _ = sch.split(row, [None, group])
    rows, values = extents_of(sch, [row])[0], 0
    for name in reversed(names[:-1]):
        block = sch.get_sblock(name)
        before = [int(v.dom.extent) for v in sch.get(block).iter_vars]
        try:
            sch.compute_at(block, row, preserve_unit_loops=True)
        except ScheduleError:
            return None
        inner = extents_of(sch, sch.get_loops(block)[1:])
        if -1 in inner or rows * prod(inner) != prod(before) or len(inner) != len(before):
            return None
        sch.set_scope(block, 0, "local")  # for the stack, as each row would ask the runtime for memory
        values += prod(inner)
    if values > _MAX_ROW_VALUES:
        return None
    try:
        if rows * values >= PARALLEL_VALUES:
            sch.parallel(row)
    except ScheduleError:  # the rows of a group do not lie along one axis
        return None
    return sch, rows, values


def _vectorise_all(sch: Schedule, names: list[str], lanes: int, inner: int) -> None:
    """Vectorise all stages. The last one has `inner` loops in a row."""
    for name in names[:-1]:
        _vectorise(sch, name, lanes, sch.get_loops(sch.get_sblock(name))[1:])
    _vectorise(sch, names[-1], lanes, sch.get_loops(sch.get_sblock(names[-1]))[-inner:])


def _vectorise(sch: Schedule, name: str, lanes: int, loops: list[Any]) -> None:
    """Vectorise a stage, which has these loops in a row or a group of rows, along its last axis that is contiguous in
    memory, with sums outside of the vectors. The last vector of a stage without sums may reach over the end of the row,
    for `with_overlapping_vectors`."""
    block = sch.get_sblock(name)
    iter_vars, extents = sch.get(block).iter_vars[-len(loops) :], extents_of(sch, loops)
    offset = len(sch.get(block).iter_vars) - len(loops)
    is_sum = [int(v.iter_type) == 2 for v in iter_vars]
    long = [i for i, extent in enumerate(extents) if extent > 1 and not is_sum[i]]
    if not long or not is_contiguous(sch, block, offset + long[-1]):
        return
    sums = [loop for loop, summed in zip(loops, is_sum, strict=True) if summed]
    others = [loop for i, loop in enumerate(loops) if i != long[-1] and not is_sum[i]]
    vector = loops[long[-1]]
    if extents[long[-1]] % lanes and extents[long[-1]] > lanes and sums:
        return
    if extents[long[-1]] > lanes:
        outer, vector = sch.split(vector, [None, lanes])
        others.append(outer)
    sch.reorder(*others, *sums, vector)
    sch.vectorize(vector)
    if sums:
        init = sch.decompose_reduction(block, sums[0])
        sch.vectorize(sch.get_loops(init)[-1])
