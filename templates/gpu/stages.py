"""Pieces that every GPU template shares: launch shapes, cooperative copies, sums in registers, the device's limits.

Start at `launch` (it binds loops to blocks and threads) and `limit_constraints` (what a device refuses is never
compiled). TVM puts barriers around stages in "shared" scope. Every such stage is computed by all items of a group, in
loops whose bounds do not depend on the item, so that no barrier stands in divergent flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from templates.gpu.limits import GpuLimits
from templates.space import Constraint, Values
from templates.stages import unroll_tile

# The largest group along z: CUDA's limit, and the smallest limit of the OpenCL devices that we know.
MAX_GROUP_Z = 64
MAX_CPU_ITEMS = 32


@dataclass(frozen=True)
class Group:
    """The shape of a group, which counts work-items along threadIdx.z, threadIdx.y and threadIdx.x (the fastest)."""

    z: int = 1
    y: int = 1
    x: int = 1

    @property
    def size(self) -> int:
        return self.z * self.y * self.x


def vector_widths(limits: GpuLimits, lanes: int) -> tuple[int, ...]:
    """Return the vector lengths that divide a block of `lanes` channels and exist on the device, longest first."""
    return tuple(w for w in (16, 8, 4, 2, 1) if lanes % w == 0 and w <= limits.max_vector)


def searched_widths(limits: GpuLimits, lanes: int) -> tuple[int, ...]:
    """Return the vector lengths that are worth trying, longest first: on a CPU only the two longest."""
    widths = vector_widths(limits, lanes)
    return widths[:2] if limits.family == "cpu" else widths


def limit_constraints(
    limits: GpuLimits,
    group: Callable[[Values], Group],
    sums: Callable[[Values], int],
    local_bytes: Callable[[Values], int] = lambda _: 0,
) -> tuple[Constraint, ...]:
    """Return constraints that exclude what the device refuses or runs slowly.

    This concerns groups that are too large, too much local memory, and sums that spill. A CPU runs the items of a group
    one after the other, so that a group only shares data in the first cache level, and is kept small.

    `sums` counts the float32 values in registers per work-item, `local_bytes` the local memory of a group.
    """

    largest = min(limits.max_threads, MAX_CPU_ITEMS) if limits.family == "cpu" else limits.max_threads

    def fits(v: Values) -> bool:
        shape = group(v)
        return shape.size <= largest and shape.z <= MAX_GROUP_Z

    return (
        Constraint("the work-group is larger than the device's", fits),
        Constraint("the register tile does not fit", lambda v: sums(v) <= limits.sums),
        Constraint(
            "the group's tile does not fit into local memory", lambda v: local_bytes(v) <= limits.local_memory_bytes
        ),
    )


def cpu_sums_constraint(limits: GpuLimits, most: int, vectors: Callable[[Values], int]) -> Constraint:
    """Return the constraint that an item has enough vectors of sums to hide the latency of multiply-adds.

    On a CPU these are at least four, or `most`, the number that the problem allows, if that is less: nothing else hides
    the latency there. Other devices need one.
    """
    least = min(4, most) if limits.family == "cpu" else 1
    return Constraint("too few sums to hide a multiply-add's latency", lambda v: vectors(v) >= least)


def launch_features(limits: GpuLimits, group: Group, groups: int, local_bytes: int) -> dict[str, float]:
    """Compute features that a cost model uses for every launch: work-items, groups, local memory and occupancy.

    Occupancy is the share of the work-items that a processor can hold which are resident at once.
    """
    resident = limits.max_threads // group.size
    if local_bytes:
        resident = min(resident, limits.local_memory_bytes // local_bytes)
    return {
        "items": float(group.size * groups),
        "groups": float(groups),
        "group_items": float(group.size),
        "occupancy": resident * group.size / limits.max_threads,
        "local_bytes": float(local_bytes),
    }


def launch(sch: Schedule, loops: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Bind loops to launch tags ("blockIdx.x", "threadIdx.y", ...); several neighbouring loops are fused into one.

    Returns the bound loop of every tag.
    """
    bound = {}
    for tag, parts in loops.items():
        bound[tag] = sch.fuse(*parts) if len(parts) > 1 else parts[0]
        sch.bind(bound[tag], tag)
    return bound


def own_loops(sch: Schedule, block: Any) -> list[Any]:
    """Return the loops of a stage that was moved into another one with unit loops kept.

    There is one loop per dimension. The loops around them, which belong to the other stage, are left out.
    """
    return sch.get_loops(block)[-len(sch.get(block).iter_vars) :]


def cooperate(sch: Schedule, stage: Any, at: Any, *, group: Group, vector: int) -> None:
    """Compute a stage into local memory at the loop `at`. The items of a group share the work, `vector` values each.

    `vector` divides the stage's last dimension, so that a vector lies inside or outside of the stage as a whole.
    """
    sch.set_scope(stage, 0, "shared")
    sch.compute_at(stage, at, preserve_unit_loops=True)
    *outer, last = own_loops(sch, stage)
    parts = [last]
    if vector > 1:
        last, vectors = sch.split(last, [None, vector])
        sch.vectorize(vectors)
        parts = [last]
    _, z, y, x = sch.split(sch.fuse(*outer, *parts), [None, group.z, group.y, group.x])
    launch(sch, {"threadIdx.z": [z], "threadIdx.y": [y], "threadIdx.x": [x]})


def copy_width(widths: Sequence[int], read: int) -> int:
    """Return the longest of `widths` (longest first) for an asynchronous copy of values that are read `read` at a time.

    It differs from `read`, unless it is 1. If local memory is written and read only in vectors of one length, TVM 0.27
    changes the memory's type to that vector and then fails to make the copy asynchronous.
    """
    return next(width for width in widths if width == 1 or width != read)


def overlap_copies(sch: Schedule, loop: Any, copies: int) -> None:
    """Copy the values of a loop's next iteration while the current one computes.

    The copies are cp.async, and each of them gets two buffers. `copies` is the number of stages that `cooperate` put at
    the loop; their readers come after them. The loop needs at least two iterations. TVM's software pipeline commits a
    group of copies per iteration, waits for the previous group, and puts barriers around its readers.
    """
    sch.annotate(loop, "software_pipeline_stage", [0] * copies + [1])
    sch.annotate(loop, "software_pipeline_order", list(range(copies + 1)))
    sch.annotate(loop, "software_pipeline_async_stages", [0])


def into_registers(sch: Schedule, stage: Any, at: Any, vector: int) -> None:
    """Compute a stage at the loop `at` into an item's own registers: unrolled, `vector` values at a time.

    `vector` divides the extent of the stage's last dimension at this loop.
    """
    sch.set_scope(stage, 0, "local")
    sch.compute_at(stage, at, preserve_unit_loops=True)
    *outer, last = own_loops(sch, stage)
    unroll_tile(sch, [*outer, *sch.split(last, [None, vector])])


def into_own_memory(sch: Schedule, stage: Any, at: Any, vector: int) -> None:
    """Compute a stage at the loop `at` into an item's own memory, in loops that are not unrolled.

    This is for stages that are too large for registers.
    """
    sch.set_scope(stage, 0, "local")
    sch.compute_at(stage, at, preserve_unit_loops=True)
    if vector > 1:
        sch.vectorize(sch.split(own_loops(sch, stage)[-1], [None, vector])[1])


def own_kernel(sch: Schedule, stage: Any, items: int, vector: int) -> None:
    """Make a stage at the root a kernel of its own, with one item per `vector` values and `items` items per group."""
    *outer, last = sch.get_loops(stage)
    chunk, vectors = sch.split(last, [None, vector])
    block, thread = sch.split(sch.fuse(*outer, chunk), [None, items])
    launch(sch, {"blockIdx.x": [block], "threadIdx.x": [thread]})
    unroll_tile(sch, [vectors])


def write_back(sch: Schedule, sums: Any, at: Any, result: str = "out") -> Any:
    """Keep a stage's sums in registers and write them at the loop `at`, in whole vectors. Return the writing stage.

    The epilogue (the stage `result`) is inlined into it. A single scalar access would make the compiler keep the sums
    in memory. The write is therefore unrolled and vectorised like the sums, and predicates that cut off what a tile
    computes in excess may depend on every loop but the last.
    """
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, at, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock(result))
    unroll_tile(sch, own_loops(sch, write))
    return write


def split_init(sch: Schedule, sums: Any, reduction: Any) -> None:
    """Clear the sums before `reduction`, the outermost reduction loop, in whole vectors.

    This must come last in a schedule: no stage can be moved afterwards.
    """
    outside = [sch.get(loop).same_as(sch.get(reduction)) for loop in sch.get_loops(sums)].index(True)
    init = sch.decompose_reduction(sums, reduction)
    unroll_tile(sch, sch.get_loops(init)[outside:])
