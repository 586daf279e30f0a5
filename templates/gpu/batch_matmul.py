"""The template that multiplies pairs of computed matrices on OpenCL and CUDA devices. Start at `GpuBatchMatmul`.

A first kernel packs the second matrices as (batch, tiles, depth, nb, ot, vec). A second one multiplies: a group
computes `rt` x `ri` rows by a tile of `nb` x `ot` x `vec` columns, and neighbouring items read neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.target import Target

from templates.batch_matmul import BatchMatmul
from templates.blocking import tile_sizes
from templates.gpu.limits import GpuLimits, gpu_limits
from templates.gpu.stages import (
    Group,
    launch,
    launch_features,
    limit_constraints,
    own_kernel,
    split_init,
    vector_widths,
    write_back,
)
from templates.space import Constraint, Knob, Space, Values, at_most
from templates.stages import new_schedule, stored_as, unroll_tile, widened, zero
from templates.template import Template
from tuning_db.record import Config, Workload

_PACKING_ITEMS = 64  # that pack the second matrices in a group
_SEEDS: dict[str, tuple[Values, ...]] = {
    "cpu": ({"vec": 16, "nb": 4, "ki": 4}, {"vec": 8, "nb": 4, "ki": 4}, {"vec": 4, "nb": 2, "ki": 4}),
    "other": ({"vec": 4, "ot": 16, "rt": 4, "ki": 4}, {"vec": 2, "ot": 16, "rt": 8, "ki": 4}, {"vec": 1, "ot": 32}),
}


class GpuBatchMatmul(Template):
    """A template whose register tile has `ri` rows by `nb` vectors of `vec` columns.

    Its other knobs: a group has `rt` by `ot` such tiles. `ki` terms are unrolled.
    """

    name = "gpu.batch_matmul"
    op = "batch_matmul"
    dtypes = ("float32", "float16")

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits, product = gpu_limits(target), BatchMatmul.of(workload)
        if limits is None or not limits.stores(workload.dtype):
            return None
        knobs, constraints = _knobs(product, limits), _constraints(product, limits)
        seeds = tuple(at_most({**seed, "ri": 4}, knobs) for seed in _SEEDS.get(limits.family, _SEEDS["other"]))
        return Space(self.name, knobs, constraints, (*seeds, {}), lambda v: _features(product, limits, v))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        return _schedule(_compute(BatchMatmul.of(workload), config.knobs, workload.dtype), config.knobs)


def _group(v: Values) -> Group:
    return Group(v["rt"], 1, v["ot"])


def _packed_shape(product: BatchMatmul, v: Values) -> tuple[int, int, int, int, int, int]:
    """Return the shape (batch, tiles, depth, nb, ot, vec) of the packed matrices, with the depth filled up to `ki`."""
    wide, depth = v["nb"] * v["ot"] * v["vec"], -(-product.depth // v["ki"]) * v["ki"]
    return product.batch, -(-product.columns // wide), depth, v["nb"], v["ot"], v["vec"]


def _padded_rows(product: BatchMatmul, v: Values) -> int:
    tile = v["rt"] * v["ri"]
    return -(-product.rows // tile) * tile


def _knobs(product: BatchMatmul, limits: GpuLimits) -> tuple[Knob, ...]:
    vectors = -(-product.columns // limits.lanes)
    widths = tuple(w for w in reversed(vector_widths(limits, limits.lanes)) if product.columns % w == 0)
    return (
        Knob("ri", tile_sizes(product.rows, 8)),
        Knob("rt", tuple(r for r in (1, 2, 4, 8, 16) if r <= product.rows)),
        Knob("nb", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors)),
        Knob("vec", widths),
        Knob("ot", tuple(o for o in (1, 2, 4, 8, 16, 32, 64) if o <= product.columns)),
        Knob("ki", tuple(i for i in (1, 2, 4, 8) if i <= product.depth)),
    )


def _constraints(product: BatchMatmul, limits: GpuLimits) -> tuple[Constraint, ...]:
    def waste(v: Values) -> float:
        batch, tiles, depth, *tile = _packed_shape(product, v)
        return 2 * batch * _padded_rows(product, v) * tiles * prod(tile) * depth / product.flop

    return (
        *limit_constraints(limits, _group, lambda v: v["ri"] * v["nb"] * v["vec"]),
        Constraint("too many unrolled multiply-adds", lambda v: v["ri"] * v["nb"] * v["ki"] <= limits.max_unrolled),
        Constraint("too much is computed in vain", lambda v: waste(v) <= 1.5 or v["nb"] * v["ot"] * v["vec"] == 1),
    )


def _features(product: BatchMatmul, limits: GpuLimits, v: Values) -> Mapping[str, float]:
    batch, tiles, *_ = _packed_shape(product, v)
    groups = batch * tiles * _padded_rows(product, v) // (v["rt"] * v["ri"])
    return {
        **launch_features(limits, _group(v), groups, 0),
        "accumulators": float(v["ri"] * v["nb"]),
        "sums": float(v["ri"] * v["nb"] * v["vec"]),
        "loads_per_fma": (v["nb"] + v["ri"]) / (v["nb"] * v["ri"]),
        "body_fmas": float(v["ri"] * v["nb"] * v["ki"]),
    }


def _compute(product: BatchMatmul, k: Values, dtype: str) -> tirx.PrimFunc:
    batch, tiles, depth, *tile = _packed_shape(product, k)
    rows, wide, vec = _padded_rows(product, k), prod(tile), k["vec"]
    first = te.placeholder((batch, product.rows, product.depth), name="first", dtype=dtype)
    second = te.placeholder(product.second_shape, name="second", dtype=dtype)
    ko, ki = te.reduce_axis((0, depth // k["ki"]), "ko"), te.reduce_axis((0, k["ki"]), "ki")

    def at_packed(g: Any, t: Any, d: Any, *at: Any) -> Any:
        b, o, v = at
        column = t * wide + (b * k["ot"] + o) * vec + v
        value = second[g, column, d] if product.transposed else second[g, d, column]
        if product.columns % wide == 0 and depth == product.depth:
            return value
        return tirx.if_then_else(tirx.all(column < product.columns, d < product.depth), value, zero(dtype))

    packed = te.compute((batch, tiles, depth, *tile), at_packed, name="packed")

    def term(g: Any, i: Any, t: Any, *at: Any) -> Any:
        d = ko * k["ki"] + ki
        row = i if rows == product.rows else tirx.min(i, product.rows - 1)
        place = d if depth == product.depth else tirx.min(d, product.depth - 1)
        return te.sum(widened(first[g, row, place]) * widened(packed[(g, t, d, *at)]), axis=[ko, ki])

    sums = te.compute((batch, rows, tiles, *tile), term, name="sums")

    def result(g: Any, i: Any, j: Any) -> Any:
        at = j // wide, j % wide // (k["ot"] * vec), j % (k["ot"] * vec) // vec, j % vec
        return stored_as(sums[(g, i, *at)], dtype)

    out = te.compute((batch, product.rows, product.columns), result, name="out")
    return te.create_prim_func([first, second, out])


def _schedule(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the loops as: groups | items | terms | register tile."""
    sch = new_schedule(func)
    own_kernel(sch, sch.get_sblock("packed"), _PACKING_ITEMS, k["vec"])
    sums = sch.get_sblock("sums")
    g, i, t, b, o, v, ko, ki = sch.get_loops(sums)
    ib, it, ii = sch.split(i, [None, k["rt"], k["ri"]])
    sch.reorder(g, ib, t, it, o, ko, ki, ii, b, v)
    groups = {"blockIdx.z": [g], "blockIdx.y": [ib], "blockIdx.x": [t]}
    launch(sch, {**groups, "threadIdx.z": [it], "threadIdx.x": [o]})
    write_back(sch, sums, o)
    unroll_tile(sch, [ki, ii, b, v])
    split_init(sch, sums, ko)
    return sch.mod["main"]
