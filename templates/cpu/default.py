"""The default schedule of a CPU. Start at `schedule`.

Element-wise stages are inlined; every remaining block runs parallel over its outer loops, with the innermost spatial
loop inside the reduction as a vector. What a primitive refuses stays as it was: the result is always correct, and in
the worst case serial.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

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
from templates.cpu.isa import vector_unit
from templates.stages import new_schedule

# A parallel region costs about a microsecond: smaller loops stay serial.
_PARALLEL_ITERATIONS = 4096
# As many chunks keep the cores of an edge device evenly busy.
_PARALLEL_CHUNKS = 32


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A parallel and vectorised version of an unscheduled function for an llvm target, marked as scheduled.

    Functions without blocks (hand-written loops) come back unchanged but for the mark.
    """
    if not block_names(new_schedule(func)):
        return mark_scheduled(func, func)
    sch = inlined(func, lambda *_: False)
    lanes = vector_unit(target).lanes
    for name in block_names(sch):
        if name in block_names(sch):  # else folded into a reduction before it
            sch = attempt(sch, partial(_schedule_block, name=name, lanes=lanes))
    return mark_scheduled(sch.mod["main"], func)


def _schedule_block(sch: Schedule, name: str, lanes: int) -> None:
    """Outer spatial loops in parallel | reduction | innermost spatial loop as a vector, where it is contiguous."""
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
    if not reduction and prod(extents_of(sch, outer[:-1])) >= _PARALLEL_CHUNKS:
        outer = outer[:-1]  # a loop of its own along a row: no index is divided out of the fused one in it
    parallel = sch.fuse(*outer)
    if prod(extents) >= _PARALLEL_ITERATIONS:
        sch.parallel(parallel)  # before the reduction is decomposed: afterwards TVM refuses
    if vector:
        _schedule_vector(sch, name, block, outer=parallel, reduction=reduction, inner=inner[-1], lanes=lanes)


def _schedule_vector(
    sch: Schedule, name: str, block: Any, *, outer: Any, reduction: list[Any], inner: Any, lanes: int
) -> None:
    """Sums in registers, everything as vectors."""
    if reduction:
        write = sch.cache_write(block, 0, "local")
        sch.reverse_compute_at(write, outer, preserve_unit_loops=True)
        fold_consumer(sch, write)
        _vectorise(sch, sch.get_loops(write)[-1], lanes)
    _vectorise(sch, inner, lanes)
    if reduction:
        sch.decompose_reduction(block, reduction[0])
        _vectorise(sch, sch.get_loops(sch.get_sblock(f"{name}_init"))[-1], lanes)


def _vectorise(sch: Schedule, loop: Any, lanes: int) -> None:
    if 1 < extents_of(sch, [loop])[0] <= 4 * lanes:
        sch.vectorize(loop)


def _vector_loop(sch: Schedule, loop: Any, lanes: int) -> list[Any]:
    """A loop split into whole vectors where they divide it."""
    extent = extents_of(sch, [loop])[0]
    for width in (2 * lanes, lanes, lanes // 2):
        if width > 1 and extent % width == 0:
            return [loop] if extent == width else list(sch.split(loop, [None, width]))
    return [loop]
