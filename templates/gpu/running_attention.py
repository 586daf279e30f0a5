"""The template computes attention on OpenCL and CUDA devices in one kernel. Start at `RunningAttention`.

A group computes a tile of queries from the scores to the result. It walks over tiles of keys and values, which it
copies into local memory, and keeps the largest score and the sum of powers so far: scores are never in the device's
memory, and there may be any number of keys. The loop is in `templates.gpu.running_attention_kernel`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.target import Target

from templates.attention import Attention
from templates.gpu.attention_tile import RowTile
from templates.gpu.limits import GpuLimits, gpu_limits
from templates.gpu.running_attention_kernel import running_attention
from templates.gpu.stages import Group, launch_features, limit_constraints, vector_widths
from templates.space import Constraint, Knob, Space, Values, valid_seeds
from templates.template import Template
from tuning_db.record import Config, Workload

_COUNTS = (1, 2, 4, 8, 16, 32)
_WIDEST_VECTOR = 4
_MAX_WASTE = 2.0  # multiply-adds that are computed, over those that there are
_SEEDS = 6
# What an item's steps take, in multiply-adds: estimates for the order of seeds. Local memory passes on a value for each
# fourth multiply-add of a processor, and a vector of four values in the time of two.
_LOAD, _COPY, _POWER, _BARRIER = 4.0, 12.0, 12.0, 40.0
_BUSY_ITEMS = 4096  # as many hide each other's latency on a small GPU
_RESIDENT_ITEMS = 256  # as many do so on one of its processors
_ALONE = 0.25  # what waiting at barriers adds where a processor has a single group
# Kernels that keep scores in the device's memory (templates.gpu.attention) write or read each of them this often, and
# their first configs have this many queries in a group.
_SCORE_ACCESSES, _OTHER_ROWS = 6, 16
_LEAST_ITEMS = 2048
_CUDA_LOCAL_BYTES = 96 << 10  # of a multiprocessor; a group may declare half of it
_LARGE_SCORES = 256 << 20  # bytes


class RunningAttention(Template):
    """A template whose groups have `rt` by `ot` items. An item has `ri` queries, and of each of them `nb` vectors of
    `vec` scores and as many vectors of the result as its width takes.

    A group thus has `rt` x `ri` queries, and `ot` x `nb` x `vec` keys at a time. `ki` terms of both products are
    unrolled. Operands and results are stored as the workload says, and all sums are float32.
    """

    name = "gpu.attention_running"
    op = "attention"
    dtypes = ("float32", "float16")

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits, view, dtype = gpu_limits(target), Attention.of(workload), workload.dtype
        if limits is None or not limits.shares_memory or not limits.stores(dtype):
            return None
        knobs, constraints = _knobs(view, limits), _constraints(view, limits, dtype)
        seeds = _seeds(view, limits, dtype, knobs=knobs, constraints=constraints)
        if not seeds:
            return None
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(RowTile(view, v, dtype), limits))

    def leads(self, workload: Workload, target: Target) -> bool:
        """By estimate it moves fewer bytes than kernels that keep scores in memory, if a device is not left idle."""
        space, view = self.space(workload, target), Attention.of(workload)
        if space is None:
            return False
        tile, heads = RowTile(view, space.seeds[0], workload.dtype), view.batch * view.heads
        scores = 4 * heads * view.rows * view.columns
        busy = tile.groups * tile.items >= _LEAST_ITEMS or scores > _LARGE_SCORES
        others = tile.operand_bytes // tile.row_tiles * -(-view.rows // _OTHER_ROWS)
        return busy and tile.operand_bytes < _SCORE_ACCESSES * scores + others

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        return running_attention(workload, target, config.knobs)


def _knobs(view: Attention, limits: GpuLimits) -> tuple[Knob, ...]:
    widths = vector_widths(limits, _WIDEST_VECTOR)
    return (
        Knob("ri", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= view.rows)),
        Knob("rt", tuple(n for n in _COUNTS if n <= view.rows)),
        Knob("nb", tuple(n for n in (1, 2, 3, 4) if n <= view.columns)),
        Knob("vec", tuple(w for w in reversed(widths) if view.width % w == 0)),
        Knob("ot", tuple(n for n in _COUNTS if n <= view.columns)),
        Knob("ki", tuple(n for n in (1, 2, 4, 8) if view.depth % n == 0)),
    )


def _constraints(view: Attention, limits: GpuLimits, dtype: str) -> tuple[Constraint, ...]:
    def tile(v: Values) -> RowTile:
        return RowTile(view, v, dtype)

    def vectors(v: Values) -> int:
        return int(v["nb"]) + tile(v).value_vectors

    def unrolled(v: Values) -> int:
        return int(v["ri"] * v["ki"]) * max(v["nb"], tile(v).value_vectors)

    return (
        *limit_constraints(limits, _group, lambda v: v["ri"] * vectors(v) * v["vec"], lambda v: tile(v).local_bytes),
        Constraint("too many unrolled multiply-adds", lambda v: unrolled(v) <= limits.max_unrolled),
        Constraint("too much is computed in vain", lambda v: tile(v).waste <= _MAX_WASTE),
    )


def _group(v: Values) -> Group:
    return Group(x=v["rt"] * v["ot"])


def _seeds(
    view: Attention, limits: GpuLimits, dtype: str, *, knobs: Sequence[Knob], constraints: Sequence[Constraint]
) -> tuple[Values, ...]:
    """Return the tiles that take the least time by an estimate, best first."""
    values = {knob.name: knob.values for knob in knobs}
    ki, vec = max(k for k in values["ki"] if k <= _WIDEST_VECTOR), max(values["vec"])
    tiles = (
        {"ri": ri, "rt": rt, "nb": nb, "vec": vec, "ot": ot, "ki": ki}
        for ri, rt, nb, ot in itertools.product(values["ri"], values["rt"], values["nb"][:2], values["ot"])
    )
    valid = valid_seeds(tiles, knobs, constraints, most=1 << 20)
    return tuple(sorted(valid, key=lambda v: _estimate(RowTile(view, v, dtype), limits))[:_SEEDS])


def _estimate(tile: RowTile, limits: GpuLimits) -> float:
    """Estimate the time of a tile, in multiply-adds of a device whose items are all busy."""
    view, v, columns = tile.view, tile.v, tile.value_vectors * tile.v["vec"]
    scores, load = v["nb"] * v["vec"], min(v["ki"], _WIDEST_VECTOR)

    def loads(count: int, width: int) -> float:
        return count / width * _LOAD * (2 if width > 2 else 1)

    def product(terms: int, columns: int) -> float:
        return terms * (v["ri"] * columns + loads(columns, v["vec"]) + loads(v["ri"], load))

    copied = tile.keys * (view.depth + tile.value_vectors * tile.wide) / tile.items
    steps = product(view.depth, scores) + product(tile.keys, columns)
    steps += _COPY * copied + v["ri"] * (_POWER * scores + _LOAD * v["ot"] + columns) + 4 * _BARRIER
    resident = _resident(tile, limits)
    waits = max(1.0, _RESIDENT_ITEMS / (resident * tile.items)) + _ALONE / resident
    idle = max(1.0, _BUSY_ITEMS / (tile.groups * tile.items))
    return steps * tile.key_tiles * tile.groups * tile.items * waits * idle


def _resident(tile: RowTile, limits: GpuLimits) -> int:
    """Estimate how many groups a processor holds at a time."""
    by_items = limits.max_threads // tile.items
    if limits.family == "mali":  # its local memory lies in main memory
        return by_items
    held = max(limits.local_memory_bytes, _CUDA_LOCAL_BYTES if limits.kind == "cuda" else 0)
    return min(by_items, held // tile.local_bytes)


def _features(tile: RowTile, limits: GpuLimits) -> Mapping[str, float]:
    v, vectors = tile.v, tile.value_vectors
    return {
        **launch_features(limits, _group(v), tile.groups, tile.local_bytes),
        "sums": float(v["ri"] * (v["nb"] + vectors) * v["vec"]),
        "loads_per_fma": (v["nb"] + v["ri"]) / (v["nb"] * v["ri"]),
        "value_loads_per_fma": (vectors + v["ri"]) / (vectors * v["ri"]),
        "body_fmas": float(v["ri"] * max(v["nb"], vectors) * v["ki"]),
        "key_tiles": float(tile.key_tiles),
        "operand_bytes": float(tile.operand_bytes),
        "waste": tile.waste,
    }
