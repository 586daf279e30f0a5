"""Pieces that every GPU template shares: launch shapes, cooperative copies, sums in registers, the device's limits.

Start at `launch` (loops to blocks and threads) and `limit_constraints` (what a device refuses is never compiled).
Barriers are TVM's: it puts them around stages in "shared" scope. Every stage here is computed by all items of a
group, in loops whose bounds no item changes, so that no barrier ever stands in divergent flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from templates.gpu.limits import GpuLimits
from templates.space import Constraint, Values
from templates.stages import unroll_tile

# CUDA's largest group along z, and the smallest of any OpenCL device's limits along it that we know.
MAX_GROUP_Z = 64
MAX_CPU_ITEMS = 32


@dataclass(frozen=True)
class Group:
    """Work-items of a group along threadIdx.z, threadIdx.y and threadIdx.x (the fastest)."""

    z: int = 1
    y: int = 1
    x: int = 1

    @property
    def size(self) -> int:
        return self.z * self.y * self.x


def vector_widths(limits: GpuLimits, lanes: int) -> tuple[int, ...]:
    """Vector lengths, longest first, that divide a block of `lanes` channels and exist on the device."""
    return tuple(w for w in (16, 8, 4, 2, 1) if lanes % w == 0 and w <= limits.max_vector)


def searched_widths(limits: GpuLimits, lanes: int) -> tuple[int, ...]:
    """The vector lengths worth trying: a CPU's are whole vectors or halves."""
    widths = vector_widths(limits, lanes)
    return widths[:2] if limits.family == "cpu" else widths


def limit_constraints(
    limits: GpuLimits,
    group: Callable[[Values], Group],
    sums: Callable[[Values], int],
    local_bytes: Callable[[Values], int] = lambda _: 0,
) -> tuple[Constraint, ...]:
    """What the device refuses or cannot do fast: too large groups, too much local memory, sums that spill. A CPU runs
    the items of a group one after the other: groups are for sharing data in its first cache level, no more.

    `sums`: float32 values in registers per work-item; `local_bytes`: local memory of a group.
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
    """A CPU has nothing but an item's own sums to hide a multiply-add's latency: at least four vectors of them, of
    the `most` that the problem allows."""
    least = min(4, most) if limits.family == "cpu" else 1
    return Constraint("too few sums to hide a multiply-add's latency", lambda v: vectors(v) >= least)


def launch_features(limits: GpuLimits, group: Group, groups: int, local_bytes: int) -> dict[str, float]:
    """What every launch says to a cost model: work-items, groups, and how many of the items that a processor can hold
    are there at once."""
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
    """The loops of a stage that was moved (unit loops kept) into another's: one per dimension, outer loops left out."""
    return sch.get_loops(block)[-len(sch.get(block).iter_vars) :]


def cooperate(sch: Schedule, stage: Any, at: Any, *, group: Group, vector: int) -> None:
    """Compute a stage into local memory at a loop, shared out over all items of a group, `vector` values at a time.

    `vector` divides the stage's last dimension, so that whole vectors are in or out of the stage.
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
    """The longest of `widths` (longest first) for an asynchronous copy of what is read `read` values at a time.

    TVM changes the type of local memory that is written and read in vectors of one length alone, and then fails to make
    the copy asynchronous (0.27).
    """
    return next(width for width in widths if width == 1 or width != read)


def overlap_copies(sch: Schedule, loop: Any, copies: int) -> None:
    """Copy the next turn's values while this turn computes with its own: cp.async, and two buffers for every copy.

    `copies`: how many stages `cooperate` put at the loop; what reads them comes after them. The loop turns at least
    twice. TVM's software pipeline commits a group of copies per turn, waits for the one before it and puts barriers
    around what reads it.
    """
    sch.annotate(loop, "software_pipeline_stage", [0] * copies + [1])
    sch.annotate(loop, "software_pipeline_order", list(range(copies + 1)))
    sch.annotate(loop, "software_pipeline_async_stages", [0])


def into_registers(sch: Schedule, stage: Any, at: Any, vector: int) -> None:
    """Compute a stage at a loop into an item's own registers: everything unrolled, `vector` values at a time.

    `vector` divides the length that is needed of the stage's last dimension.
    """
    sch.set_scope(stage, 0, "local")
    sch.compute_at(stage, at, preserve_unit_loops=True)
    *outer, last = own_loops(sch, stage)
    unroll_tile(sch, [*outer, *sch.split(last, [None, vector])])


def into_own_memory(sch: Schedule, stage: Any, at: Any, vector: int) -> None:
    """Compute a stage at a loop into memory of an item: too much for registers, in plain loops."""
    sch.set_scope(stage, 0, "local")
    sch.compute_at(stage, at, preserve_unit_loops=True)
    if vector > 1:
        sch.vectorize(sch.split(own_loops(sch, stage)[-1], [None, vector])[1])


def own_kernel(sch: Schedule, stage: Any, items: int, vector: int) -> None:
    """A stage at the root as a kernel of its own: one item per `vector` values, `items` to a group."""
    *outer, last = sch.get_loops(stage)
    chunk, vectors = sch.split(last, [None, vector])
    block, thread = sch.split(sch.fuse(*outer, chunk), [None, items])
    launch(sch, {"blockIdx.x": [block], "threadIdx.x": [thread]})
    unroll_tile(sch, [vectors])


def write_back(sch: Schedule, sums: Any, at: Any) -> Any:
    """Keep a stage's sums in registers and write them at a loop, with the epilogue ("out") and in whole vectors.

    One scalar access would make the compiler keep the sums in memory: the write is unrolled and vectorised like the
    sums, and predicates that cut off a tile's surplus may depend on every loop but the last.
    """
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, at, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    unroll_tile(sch, own_loops(sch, write))
    return write


def split_init(sch: Schedule, sums: Any, reduction: Any) -> None:
    """Clear the sums before the outermost reduction loop, in whole vectors. The last step: nothing moves after it."""
    outside = [sch.get(loop).same_as(sch.get(reduction)) for loop in sch.get_loops(sums)].index(True)
    init = sch.decompose_reduction(sums, reduction)
    unroll_tile(sch, sch.get_loops(init)[outside:])
