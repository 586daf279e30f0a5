"""The default schedule of a GPU (OpenCL or CUDA): everything that accesses memory runs in kernels. Start at `schedule`.

Element-wise stages are inlined. A function that normalises rows (softmax, layer norm) becomes one kernel with a
work-group per row. The terms of a long reduction with few results are distributed over the items of a group. Any other
block gets one work-item per result, or per vector of neighbouring results. Code that none of this applies to runs in
one work-item, which is slow but correct. For a CPU behind OpenCL, `of_loops` makes kernels of what was scheduled for
CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from templates.blocks import (
    attempt,
    block_names,
    extents_of,
    fold_consumer,
    inlined,
    is_condition,
    is_contiguous,
    kinds_of,
    mark_scheduled,
)
from templates.gpu.limits import GpuLimits
from templates.gpu.opaque import bind_rest, host_accesses
from templates.rewrite import depends, nodes_of, with_values
from templates.template import ScheduleError

# Work-items in a group unless something else decides: a few waves of a GPU. A CPU runs the items of a group one after
# the other on one core, so that small groups keep all cores busy.
_ITEMS = {"cpu": 16, "nvidia": 128}
_ITEMS_ELSEWHERE = 64
# Terms of a reduction from which on it is distributed over items. In a shorter one the barriers would cost too much.
_LONG_REDUCTION = 64
# A reduction with more results than this is not distributed, as its results keep the device busy.
_FEW_RESULTS = {"cpu": 16}
_FEW_RESULTS_ELSEWHERE = 1024
# Bytes of local memory per item for its partial results, with several sums and a margin included.
_SHARE_BYTES = 64
# A stage may be computed this many times over, which saves writing and reading it.
_REPEATS = 16
_VECTOR_DTYPES = ("float32", "float16", "int32")


def schedule(func: tirx.PrimFunc, limits: GpuLimits) -> tirx.PrimFunc:
    """Schedule a function so that all its work is done in kernels, and mark it as scheduled.

    Raises ScheduleError if it calls functions of the host.
    """
    sch = inlined(func, _is_cheap)
    if block_names(sch):
        sch = _scheduled(sch, limits)
    return mark_scheduled(_in_kernels(sch.mod["main"], limits), func)


def of_loops(func: tirx.PrimFunc, limits: GpuLimits) -> tirx.PrimFunc:
    """Return a function that was scheduled for a CPU in kernels, whose work-items share its parallel loops out, with
    vectors that the device has. Raises ScheduleError if it calls functions of the host."""

    def cut(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        extent = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 1
        longest = limits.max_vector if _chooses_by_lane(loop) else 1
        widths = [w for w in (16, 8, 4, 2) if w <= longest and extent % w == 0]
        if widths[:1] == [extent]:
            return loop
        if not widths:
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
        kind = str(loop.loop_var.ty.dtype)
        outer, lane = tirx.Var("outer", kind), tirx.Var("lane", kind)
        body = with_values(loop.body, {loop.loop_var: outer * widths[0] + lane})
        zero, width = tirx.const(0, kind), tirx.const(widths[0], kind)
        vector = tirx.For(lane, zero, width, loop.kind, body)
        return tirx.For(outer, zero, tirx.const(extent // widths[0], kind), tirx.ForKind.SERIAL, vector)

    return _in_kernels(func.with_body(tvm_ffi.structural_map(func.body, [(tirx.For, cut)])), limits)


def _in_kernels(func: tirx.PrimFunc, limits: GpuLimits) -> tirx.PrimFunc:
    """Return a function with all that is bound to no work-items in kernels. Raises ScheduleError if it calls functions
    of the host."""
    bound = bind_rest(func, _items(limits))
    left = host_accesses(bound.body)
    if left:
        raise ScheduleError(f"this function has no GPU version, it runs on the host: {str(left[0]).splitlines()[0]}")
    return bound


def _chooses_by_lane(loop: Any) -> bool:
    """Tell whether all selections in a vectorised loop have a condition for each lane, as OpenCL's `select` needs."""
    values: dict[Any, Any] = {}
    for stage in nodes_of(loop.body, SBlockRealize):
        values |= {axis.var: value for axis, value in zip(stage.block.iter_vars, stage.iter_values, strict=True)}
    conditions = [with_values(choice.condition, values) for choice in nodes_of(loop.body, tirx.Select)]
    return all(depends(condition, loop.loop_var) for condition in conditions)


def is_of_vectors(func: tirx.PrimFunc) -> bool:
    """Tell whether all stages of a function can be vectors in OpenCL, with selections by one comparison."""
    return all(_has_vectors(block, comparisons=True) for block in nodes_of(func.body, SBlock))


def _scheduled(sch: Schedule, limits: GpuLimits) -> Schedule:
    by_rows = attempt(sch, partial(_one_kernel_of_rows, limits=limits))
    if by_rows is not sch:
        return by_rows
    ways: tuple[Callable[..., None], ...] = (
        _share_out_reduction,
        partial(_by_items, vectors=True),
        partial(_by_items, vectors=False),
    )
    for name in block_names(sch):
        if name not in block_names(sch):
            continue  # the block was folded into the reduction before it
        for way in ways:
            done = attempt(sch, partial(way, name=name, limits=limits))
            if done is not sch:
                sch = done
                break
    return sch


class _Block:
    """A block that knows the kinds and extents of its loops. Raises TVM's ScheduleError if it is no plain loop nest."""

    def __init__(self, sch: Schedule, name: str) -> None:
        self.name = name
        self.rv = sch.get_sblock(name)
        self.loops = sch.get_loops(self.rv)
        self.kinds = kinds_of(sch, self.rv)
        self.extents = extents_of(sch, self.loops)
        if "?" in self.kinds or len(self.kinds) != len(self.loops) or -1 in self.extents:
            raise tvm.s_tir.ScheduleError(f"{name} is no plain loop nest")

    def of(self, kind: str) -> list[Any]:
        return [loop for loop, k in zip(self.loops, self.kinds, strict=True) if k == kind]

    def size(self, kind: str) -> int:
        return prod(e for e, k in zip(self.extents, self.kinds, strict=True) if k == kind)


def _items(limits: GpuLimits) -> int:
    return min(_ITEMS.get(limits.family, _ITEMS_ELSEWHERE), limits.max_threads)


def _group_over(work: int, limits: GpuLimits) -> int:
    """Return over how many items to distribute `work` iterations.

    The number is a power of two and at most four times the usual group (on a CPU: the usual group). The items' partial
    results fit into a fraction of local memory. Raises TVM's ScheduleError if there is no local memory.
    """
    most = min(limits.max_threads, (1 if limits.family == "cpu" else 4) * _items(limits))
    items = min(most, work, limits.local_memory_bytes // _SHARE_BYTES)
    if not items:
        raise tvm.s_tir.ScheduleError("there is no local memory to add shares up in")
    return 1 << (items.bit_length() - 1)


def _is_cheap(sch: Schedule, stage: Any, reduction: Any) -> bool:
    """Tell whether a stage may be computed anew for every term of a reduction.

    It must be arithmetic only, without function calls, and may be repeated at most `_REPEATS` times.
    """
    calls = not all(map(is_condition, nodes_of(sch.get(stage).body, tvm.ir.Call)))
    terms, values = (prod(extents_of(sch, sch.get_loops(block))) for block in (reduction, stage))
    return not calls and 0 < terms <= _REPEATS * values


def _launch(sch: Schedule, loop: Any, items: int) -> Any:
    """Bind a loop to groups of `items` and return the loop over items."""
    items = min(items, *extents_of(sch, [loop]))
    group, item = sch.split(loop, [None, items])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    return item


def _by_items(sch: Schedule, name: str, limits: GpuLimits, vectors: bool) -> None:
    """Let one item compute each result, or each vector of results, with its sums in registers.

    Raises TVM's ScheduleError if there is only one result.
    """
    block = _Block(sch, name)
    outer, reduction = block.of("S"), block.of("R")
    if not outer:
        raise tvm.s_tir.ScheduleError(f"{name} has one result")
    lanes = _vector_lanes(sch, block, limits) if vectors else 1
    inner = []
    if lanes > 1:
        last = max(i for i, extent in enumerate(extents_of(sch, outer)) if extent > 1)
        outer[last], vector = sch.split(outer[last], [None, lanes])
        inner = [vector]
    sch.reorder(*outer, *reduction, *inner)
    item = _launch(sch, sch.fuse(*outer), _items(limits))
    if reduction:
        _sum_in_registers(sch, block, item, first=reduction[0], vectors=inner)
    elif inner:
        sch.vectorize(inner[0])


def _sum_in_registers(sch: Schedule, block: _Block, item: Any, *, first: Any, vectors: list[Any]) -> None:
    """Keep sums in registers and write them once, together with an element-wise stage that follows them."""
    if len(sch.get(block.rv).writes) == 1:
        write = sch.cache_write(block.rv, 0, "local")
        sch.reverse_compute_at(write, item, preserve_unit_loops=True)
        fold_consumer(sch, write)
        if vectors:
            sch.vectorize(_innermost(sch, write))
    if vectors:
        sch.vectorize(vectors[0])  # this comes before the reduction is decomposed: afterwards TVM refuses
    init = sch.decompose_reduction(block.rv, first)
    if vectors:
        sch.vectorize(_innermost(sch, init))


def _innermost(sch: Schedule, block: Any) -> Any:
    """Return the last loop with more than one iteration."""
    loops = sch.get_loops(block)
    return next(loop for loop in reversed(loops) if extents_of(sch, [loop]) != [1])


def _vector_lanes(sch: Schedule, block: _Block, limits: GpuLimits) -> int:
    """Return the longest vector for the last spatial loop, or 1 if its iterations do not access contiguous memory."""
    long = [i for i, (e, k) in enumerate(zip(block.extents, block.kinds, strict=True)) if e > 1 and k == "S"]
    if not long or not _has_vectors(sch.get(block.rv)) or not is_contiguous(sch, block.rv, long[-1]):
        return 1
    most = min(limits.lanes, limits.max_vector)
    return next(w for w in (16, 8, 4, 2, 1) if w <= most and block.extents[long[-1]] % w == 0)


def _has_vectors(node: Any, *, comparisons: bool = False) -> bool:
    """Tell whether a block computes only with types and operations that OpenCL and CUDA both have as vectors.

    These exclude booleans, because true is -1 in OpenCL's vectors and 1 elsewhere. They exclude selections as well,
    whose condition may be a single boolean for the whole vector, but with `comparisons` those by a comparison.
    """
    odd: list[Any] = []

    def cast(node: Any) -> None:
        if "bool" in (str(node.ty.dtype), str(node.value.ty.dtype)):
            odd.append(node)

    def select(node: Any) -> None:
        if not comparisons or not isinstance(node.condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
            odd.append(node)

    rules = [(tirx.Cast, cast), (tirx.Select, select), ((tirx.And, tirx.Or, tirx.Not), odd.append)]
    tvm_ffi.structural_walk(node.body, rules)
    buffers = [region.source for region in (*node.reads, *node.writes)]
    return not odd and all(str(b.dtype) in _VECTOR_DTYPES for b in buffers)


def _share_out_reduction(sch: Schedule, name: str, limits: GpuLimits) -> None:
    """Compute each result by a group whose items sum up an equal part of the terms each.

    TVM adds the parts up in local memory. Raises TVM's ScheduleError for a short reduction or one with many results.
    """
    block = _Block(sch, name)
    few = _FEW_RESULTS.get(limits.family, _FEW_RESULTS_ELSEWHERE)
    if block.size("R") < _LONG_REDUCTION or block.size("S") > few:
        raise tvm.s_tir.ScheduleError(f"{name} has enough results to share out")
    spatial, reduction = block.of("S"), block.of("R")
    sch.reorder(*spatial, *reduction)
    result = sch.fuse(*spatial) if spatial else sch.add_unit_loop(reduction[0])
    terms = sch.fuse(*reduction)
    _, item = sch.split(terms, [None, _group_over(block.size("R"), limits)])
    sch.bind(result, "blockIdx.x")
    sch.bind(item, "threadIdx.x")


def _one_kernel_of_rows(sch: Schedule, limits: GpuLimits) -> None:
    """Make one kernel of all blocks, in which a group computes a row and keeps intermediate results in local memory.

    This applies if every block works on the same leading axes, which are the rows, and some blocks reduce each row to a
    value. Raises TVM's ScheduleError otherwise.
    """
    blocks = [_Block(sch, name) for name in block_names(sch)]
    *earlier, last = blocks
    reductions = [b for b in earlier if "R" in b.kinds]
    if not reductions or "R" in last.kinds:
        raise tvm.s_tir.ScheduleError("no rows are reduced")
    leading = min(b.kinds.index("R") for b in reductions)
    rows = last.extents[:leading]
    columns = max(b.size("R") for b in reductions)
    held = sum(4 * prod(b.extents[leading:]) if "R" not in b.kinds else 4 for b in earlier)
    same = all(b.extents[:leading] == rows and "S" not in b.kinds[leading:] for b in reductions)
    same = same and all(b.extents[:leading] == rows for b in earlier)
    if not leading or not same or columns < _LONG_REDUCTION // 2 or held > limits.local_memory_bytes // 2:
        raise tvm.s_tir.ScheduleError("these are no rows of one kind")
    items = _group_over(columns, limits)
    # A loop that `add_unit_loop` made would count in 32 bits, and TVM cannot compare it with loops that count in 64.
    row, one = sch.split(sch.fuse(*last.loops[:leading]), [None, 1])
    sch.bind(row, "blockIdx.x")
    _over_items(sch, last.loops[leading:] or [one], items)
    for block in reversed(earlier):
        for i in range(len(sch.get(block.rv).writes)):
            sch.set_scope(block.rv, i, "shared")
        sch.compute_at(block.rv, row, preserve_unit_loops=True)
        inside = sch.get_loops(block.rv)[1:]
        _over_items(sch, inside[leading:] or inside[-1:], items)


def _over_items(sch: Schedule, loops: list[Any], items: int) -> None:
    _, item = sch.split(sch.fuse(*loops), [None, items])
    sch.bind(item, "threadIdx.x")
