"""A valid schedule for any other function, so that nothing in a network runs unscheduled. Start at `schedule`.

Element-wise stages are inlined; every remaining block runs parallel over its outer loops, with the innermost spatial
loop inside the reduction as a vector. What a primitive refuses stays as it was: the result is always correct, and in
the worst case serial.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.sym.pattern import detect_linear_equation
from tvm.target import Target

from templates.cpu.isa import vector_unit

# A parallel region costs about a microsecond: smaller loops stay serial.
_PARALLEL_ITERATIONS = 4096
# As many chunks keep the cores of an edge device evenly busy.
_PARALLEL_CHUNKS = 32
_SCHEDULED = "tirx.is_scheduled"


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A parallel and vectorised version of an unscheduled function for an llvm target, marked as scheduled.

    Functions that are already scheduled, and functions without blocks (hand-written loops), come back unchanged but
    for the mark.
    """
    if func.attrs is not None and _SCHEDULED in func.attrs:
        return func
    if not _blocks(Schedule(func, debug_mask="none", error_render_level="none")):
        return func.with_attr(_SCHEDULED, True)
    sch = _inlined(func)
    lanes = vector_unit(target).lanes
    for name in _blocks(sch):
        sch = _attempt(sch, partial(_schedule_block, name=name, lanes=lanes))
    return sch.mod["main"].with_attrs(dict(func.attrs or {})).with_attr(_SCHEDULED, True)


def _attempt(sch: Schedule, change: Callable[[Schedule], None]) -> Schedule:
    """The schedule after `change`, or as it was if a primitive does not apply: refusing is TVM's way of answering."""
    trial = sch.copy()
    try:
        change(trial)
    except ScheduleError:
        return sch
    return trial


def _blocks(sch: Schedule) -> list[str]:
    """The names of the blocks; none where a function has no root block or only hand-written loops."""
    try:
        root = sch.get_sblock("root")
    except ScheduleError:
        return []
    return [sch.get(b).name_hint for b in sch.get_child_blocks(root)]


def _kinds(sch: Schedule, block: Any) -> list[str]:
    """ "S" or "R" per loop of a block whose loops map one to one to its iterators; [] otherwise."""
    node = sch.get(block)
    loops = sch.get_loops(block)
    if len(node.iter_vars) != len(loops):
        return []
    names = {0: "S", 2: "R"}
    return [names.get(int(v.iter_type), "?") for v in node.iter_vars]


def _inlined(func: tirx.PrimFunc) -> Schedule:
    """Inline element-wise stages into their only consumer, unless that is a reduction, which would repeat them."""
    sch = Schedule(func.without_attr("global_symbol"), debug_mask="none", error_render_level="none")
    for name in _blocks(sch):
        block = sch.get_sblock(name)
        kinds = _kinds(sch, block)
        consumers = sch.get_consumers(block)
        if set(kinds) == {"S"} and len(consumers) == 1 and "R" not in _kinds(sch, consumers[0]):
            sch = _attempt(sch, partial(_inline, name=name))
    return sch


def _inline(sch: Schedule, name: str) -> None:
    sch.compute_inline(sch.get_sblock(name))


def _extents(sch: Schedule, loops: list[Any]) -> list[int]:
    """Loop extents; -1 where one is not a constant."""
    found = []
    for loop in loops:
        extent = sch.get(loop).extent
        found.append(int(extent) if isinstance(extent, int | tirx.IntImm) else -1)
    return found


def _schedule_block(sch: Schedule, name: str, lanes: int) -> None:
    """Outer spatial loops in parallel | reduction | innermost spatial loop as a vector, where it is contiguous."""
    block = sch.get_sblock(name)
    kinds = _kinds(sch, block)
    loops = sch.get_loops(block)
    extents = _extents(sch, loops)
    if not kinds or "?" in kinds or -1 in extents:
        return
    long = [i for i, extent in enumerate(extents) if extent > 1 and kinds[i] == "S"]
    if not long:
        return
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    vector = _is_vectorisable(sch, block, long[-1])
    inner = _vector_loop(sch, loops[long[-1]], lanes) if vector else [loops[long[-1]]]
    outer = [*(loops[i] for i in long[:-1]), *inner[:-1]]
    if vector:
        sch.reorder(*outer, *reduction, inner[-1])
    if not outer:
        return
    if not reduction and prod(_extents(sch, outer[:-1])) >= _PARALLEL_CHUNKS:
        outer = outer[:-1]  # a loop of its own along a row: no index is divided out of the fused one in it
    parallel = sch.fuse(*outer)
    if prod(extents) >= _PARALLEL_ITERATIONS:
        sch.parallel(parallel)  # before the reduction is decomposed: afterwards TVM refuses
    if vector:
        _schedule_vector(sch, name, block, parallel, reduction, inner[-1], lanes)


def _schedule_vector(
    sch: Schedule, name: str, block: Any, outer: Any, reduction: list[Any], inner: Any, lanes: int
) -> None:
    """Sums in registers, everything as vectors."""
    if reduction:
        write = sch.cache_write(block, 0, "local")
        sch.reverse_compute_at(write, outer, preserve_unit_loops=True)
        _vectorise(sch, sch.get_loops(write)[-1], lanes)
    _vectorise(sch, inner, lanes)
    if reduction:
        sch.decompose_reduction(block, reduction[0])
        _vectorise(sch, sch.get_loops(sch.get_sblock(f"{name}_init"))[-1], lanes)


def _vectorise(sch: Schedule, loop: Any, lanes: int) -> None:
    if 1 < _extents(sch, [loop])[0] <= 4 * lanes:
        sch.vectorize(loop)


def _is_vectorisable(sch: Schedule, block: Any, loop: int) -> bool:
    """Whether neighbouring iterations of a loop touch neighbouring (or the same) elements."""
    node = sch.get(block)
    var = node.iter_vars[loop].var
    loads: list[Any] = []
    tvm_ffi.structural_walk(node.body, [(tvm.ir.TensorLoad, lambda node: loads.append(node))])
    for access in loads:  # the store goes to the block's own iterators
        *leading, last = access.indices
        if any(_stride(index, var) != 0 for index in leading) or _stride(last, var) not in (0, 1):
            return False
    return True


def _stride(index: Any, var: Any) -> int | None:
    """The coefficient of `var` in an index; None where the index is not linear in it."""
    found = detect_linear_equation(index, [var])
    coefficient = found[0] if found else None
    return int(coefficient) if isinstance(coefficient, int | tirx.IntImm) else None


def _vector_loop(sch: Schedule, loop: Any, lanes: int) -> list[Any]:
    """A loop split into whole vectors where they divide it."""
    extent = _extents(sch, [loop])[0]
    for width in (2 * lanes, lanes, lanes // 2):
        if width > 1 and extent % width == 0:
            return [loop] if extent == width else list(sch.split(loop, [None, width]))
    return [loop]
