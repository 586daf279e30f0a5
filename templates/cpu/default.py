"""The default schedule of a CPU. Start at `schedule`.

Element-wise stages are inlined. Stages that are read by rows are computed row by row (see `rows`). Else every block
runs in parallel over its outer loops, and its innermost spatial loop is vectorised, inside the reduction. A block that
a primitive does not apply to keeps its loops: the result is always correct, and in the worst case serial.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from templates.blocks import (
    attempt,
    block_names,
    extents_of,
    fold_consumer,
    inlined,
    is_contiguous,
    kinds_of,
    mark_scheduled,
)
from templates.cpu.rows import schedule_rows
from templates.cpu.stages import PARALLEL_CHUNKS, PARALLEL_VALUES
from templates.cpu.transposed import in_tiles
from templates.stages import new_schedule


def schedule(func: tirx.PrimFunc, lanes: int, *, shuffles: bool = True) -> tirx.PrimFunc:
    """Return a parallel and vectorised version of an unscheduled function for a CPU whose vectors have so many lanes,
    marked as scheduled. Without `shuffles` tensors are transposed through memory instead of in registers.

    A function without blocks (hand-written loops) is only marked.
    """
    if not block_names(new_schedule(func)):
        return mark_scheduled(func, func)
    sch = inlined(func, lambda *_: False)
    if (transposed := in_tiles(sch, lanes, shuffles=shuffles)) is not None:
        return mark_scheduled(transposed, func)
    if (by_rows := schedule_rows(sch, lanes)) is not None:
        return mark_scheduled(by_rows, func)
    for name in block_names(sch):
        if name in block_names(sch):  # a missing block was folded into a reduction before it
            sch = attempt(sch, partial(_schedule_block, name=name, lanes=lanes))
    return mark_scheduled(sch.mod["main"], func)


def _schedule_block(sch: Schedule, name: str, lanes: int) -> None:
    """Schedule the loops as: outer spatial loops in parallel | reduction | innermost spatial loop.

    The innermost loop is vectorised if its memory accesses are contiguous.
    """
    block = sch.get_sblock(name)
    kinds = kinds_of(sch, block)
    loops = sch.get_loops(block)
    extents = extents_of(sch, loops)
    if not kinds or "?" in kinds or -1 in extents:
        return
    long = [i for i, extent in enumerate(extents) if extent > 1 and kinds[i] == "S"]
    if not long:
        return
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    vector = is_contiguous(sch, block, long[-1])
    inner = _vector_loop(sch, loops[long[-1]], lanes) if vector else [loops[long[-1]]]
    outer = [*(loops[i] for i in long[:-1]), *inner[:-1]]
    if vector:
        sch.reorder(*outer, *reduction, inner[-1])
    if not outer:
        return
    if not reduction and prod(extents_of(sch, outer[:-1])) >= PARALLEL_CHUNKS:
        outer = outer[:-1]  # the last loop is not fused: along a row no index has to be divided out of the fused loop
    parallel = sch.fuse(*outer)
    if prod(extents) >= PARALLEL_VALUES:
        sch.parallel(parallel)  # this comes before the reduction is decomposed: afterwards TVM refuses
    if vector:
        _schedule_vector(sch, block, outer=parallel, reduction=reduction, inner=inner[-1], lanes=lanes)


def _schedule_vector(sch: Schedule, block: Any, *, outer: Any, reduction: list[Any], inner: Any, lanes: int) -> None:
    """Keep the sums of a reduction in registers, and vectorise the loop `inner` as well as the stages made here."""
    if reduction:
        write = sch.cache_write(block, 0, "local")
        sch.reverse_compute_at(write, outer, preserve_unit_loops=True)
        fold_consumer(sch, write)
        _vectorise(sch, sch.get_loops(write)[-1], lanes)
    _vectorise(sch, inner, lanes)
    if reduction:
        init = sch.decompose_reduction(block, reduction[0])
        _vectorise(sch, sch.get_loops(init)[-1], lanes)


def _vectorise(sch: Schedule, loop: Any, lanes: int) -> None:
    if 1 < extents_of(sch, [loop])[0] <= 4 * lanes:
        sch.vectorize(loop)


def _vector_loop(sch: Schedule, loop: Any, lanes: int) -> list[Any]:
    """Split a loop into vectors of a length that divides it, and return the loops: one or two.

    A loop that no vector length divides is returned unchanged.
    """
    extent = extents_of(sch, [loop])[0]
    for width in (2 * lanes, lanes, lanes // 2):
        if width > 1 and extent % width == 0:
            return [loop] if extent == width else list(sch.split(loop, [None, width]))
    return [loop]
