"""The default schedule of a GPU, OpenCL or CUDA: everything that touches memory runs in kernels. Start at `schedule`.

Element-wise stages are inlined. What normalises rows (softmax, layer norm) becomes one kernel with a work-group per
row; a long reduction with few results is shared out over a group; any other block gets one work-item per result, or
per vector of neighbouring results. What all this refuses runs in one work-item: slow, and right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
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
from templates.gpu.limits import GpuLimits
from templates.gpu.opaque import bind_rest, host_accesses
from templates.template import ScheduleError

# Work-items in a group where nothing else decides: a few waves of a GPU. A CPU runs the items of a group one after
# the other on one core: small groups keep all cores busy.
_ITEMS = {"cpu": 16, "nvidia": 128}
_ITEMS_ELSEWHERE = 64
# Sharing a reduction out costs a few barriers: shorter ones stay within an item ...
_LONG_REDUCTION = 64
# ... and so do those with enough results to keep a device busy.
_FEW_RESULTS = {"cpu": 16}
_FEW_RESULTS_ELSEWHERE = 1024
# Local memory that an item's share takes, several sums and a safe distance from the limit included.
_SHARE_BYTES = 64
# A stage may be computed so many times over to save writing it out and reading it back.
_REPEATS = 16
_VECTOR_DTYPES = ("float32", "float16", "int32")


def schedule(func: tirx.PrimFunc, limits: GpuLimits) -> tirx.PrimFunc:
    """An unscheduled function with all its work in kernels, marked as scheduled.

    Raises ScheduleError if it calls functions of the host.
    """
    sch = inlined(func, _is_cheap)
    if block_names(sch):
        sch = _scheduled(sch, limits)
    bound = bind_rest(sch.mod["main"], _items(limits))
    left = host_accesses(bound.body)
    if left:
        raise ScheduleError(f"this function has no GPU version, it runs on the host: {str(left[0]).splitlines()[0]}")
    return mark_scheduled(bound, func)


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
            continue  # folded into the reduction before it
        for way in ways:
            done = attempt(sch, partial(way, name=name, limits=limits))
            if done is not sch:
                sch = done
                break
    return sch


class _Block:
    """A block with its loops by kind. Raises ScheduleError for one that is not a plain loop nest of its own."""

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
    """Items to share out `work` iterations: a power of two, at most four times the usual group, whose shares fit into
    a fraction of local memory. Raises ScheduleError where there is none."""
    most = min(limits.max_threads, (1 if limits.family == "cpu" else 4) * _items(limits))
    items = min(most, work, limits.local_memory_bytes // _SHARE_BYTES)
    if not items:
        raise tvm.s_tir.ScheduleError("there is no local memory to add shares up in")
    return 1 << (items.bit_length() - 1)


def _is_cheap(sch: Schedule, stage: Any, reduction: Any) -> bool:
    """Whether a stage may be computed anew for every term of a reduction: arithmetic only, and not too often."""
    calls: list[Any] = []

    def call(node: Any) -> None:
        if not str(getattr(node.op, "name", "")).endswith(".if_then_else"):
            calls.append(node)

    tvm_ffi.structural_walk(sch.get(stage).body, [(tvm.ir.Call, call)])
    terms, values = (prod(extents_of(sch, sch.get_loops(block))) for block in (reduction, stage))
    return not calls and 0 < terms <= _REPEATS * values


def _launch(sch: Schedule, loop: Any, items: int) -> Any:
    """Bind a loop to groups of `items`; returns the loop over items."""
    items = min(items, *extents_of(sch, [loop]))
    group, item = sch.split(loop, [None, items])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    return item


def _by_items(sch: Schedule, name: str, limits: GpuLimits, vectors: bool) -> None:
    """One item per result or vector of results, the reduction within it, its sums in registers."""
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
    """Sums leave the registers once, with what follows them element by element."""
    if len(sch.get(block.rv).writes) == 1:
        write = sch.cache_write(block.rv, 0, "local")
        sch.reverse_compute_at(write, item, preserve_unit_loops=True)
        fold_consumer(sch, write)
        if vectors:
            sch.vectorize(_innermost(sch, write))
    if vectors:
        sch.vectorize(vectors[0])  # before the reduction is decomposed: afterwards TVM refuses
    init = sch.decompose_reduction(block.rv, first)
    if vectors:
        sch.vectorize(_innermost(sch, init))


def _innermost(sch: Schedule, block: Any) -> Any:
    """The last loop that is longer than one."""
    loops = sch.get_loops(block)
    return next(loop for loop in reversed(loops) if extents_of(sch, [loop]) != [1])


def _vector_lanes(sch: Schedule, block: _Block, limits: GpuLimits) -> int:
    """The longest vector for the last spatial loop; 1 where its neighbours are not neighbours in memory."""
    long = [i for i, (e, k) in enumerate(zip(block.extents, block.kinds, strict=True)) if e > 1 and k == "S"]
    if not long or not _has_vectors(sch.get(block.rv)) or not is_contiguous(sch, block.rv, long[-1]):
        return 1
    most = min(limits.lanes, limits.max_vector)
    return next(w for w in (16, 8, 4, 2, 1) if w <= most and block.extents[long[-1]] % w == 0)


def _has_vectors(node: Any) -> bool:
    """Whether a block computes with what both languages have as vectors: no booleans (true is -1 in OpenCL's vectors
    and 1 elsewhere), and so no selection, whose condition may be one for the whole vector."""
    odd: list[Any] = []

    def cast(node: Any) -> None:
        if "bool" in (str(node.ty.dtype), str(node.value.ty.dtype)):
            odd.append(node)

    rules = [(tirx.Cast, cast), ((tirx.And, tirx.Or, tirx.Not, tirx.Select), odd.append)]
    tvm_ffi.structural_walk(node.body, rules)
    buffers = [region.source for region in (*node.reads, *node.writes)]
    return not odd and all(str(b.dtype) in _VECTOR_DTYPES for b in buffers)


def _share_out_reduction(sch: Schedule, name: str, limits: GpuLimits) -> None:
    """A group per result, its items a share of the terms each; TVM adds the shares up in local memory."""
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
    """One group per row runs all blocks, what is between them in local memory.

    Applies where every block works on the same leading axes, the rows, and some reduce each row to a value.
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
    row = sch.fuse(*last.loops[:leading])
    sch.bind(row, "blockIdx.x")
    _over_items(sch, last.rv, last.loops[leading:], items)
    for block in reversed(earlier):
        for i in range(len(sch.get(block.rv).writes)):
            sch.set_scope(block.rv, i, "shared")
        sch.compute_at(block.rv, row, preserve_unit_loops=True)
        _over_items(sch, block.rv, sch.get_loops(block.rv)[1 + leading :], items)


def _over_items(sch: Schedule, block: Any, loops: list[Any], items: int) -> None:
    inner = sch.fuse(*loops) if loops else sch.add_unit_loop(block)
    _, item = sch.split(inner, [None, items])
    sch.bind(item, "threadIdx.x")
