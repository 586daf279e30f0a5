"""The template that computes dense layers of 8-bit integers on a CPU with dot products (`cpu.dot_products`).

It has the knobs and loops of `cpu.dense`. Data is (rows, in) and the output is (rows, out). Four neighbouring inputs of
a weight lie together: it is (out / (nb v), in / 4, nb, v, 4). Inputs are filled up to a multiple of four.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import te, tirx
from tvm.target import Target

from templates.cpu.dense import PackedDense
from templates.cpu.dot_products import dot_product, has_dot_products
from templates.cpu.isa import vector_unit
from templates.integers import INTEGERS, QUAD, SUMS, Types
from templates.space import Space, Values
from templates.stages import epilogue_operands, epilogue_value, has_block, new_schedule, unroll_tile, zero
from templates.workloads import Dense, dense_of
from tuning_db.record import Config, Workload


class IntegerDense(PackedDense):
    """A template that has the knobs of `PackedDense`, for integers. `ki` counts steps of four inputs. Weights are not
    prefetched."""

    name = "cpu.dense_integer"
    dtypes = (INTEGERS,)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not has_dot_products(target):
            return None
        dense = dense_of(workload)
        steps = replace(dense, in_features=-(-dense.in_features // QUAD))  # of the reduction
        space = super().space(steps.workload(workload.epilogue, workload.dtype), target)
        assert space is not None
        knobs = tuple(replace(knob, values=(0,)) if knob.name == "prefetch" else knob for knob in space.knobs)
        seeds = dict.fromkeys(tuple({**seed, "prefetch": 0}.items()) for seed in space.seeds)
        return replace(space, knobs=knobs, seeds=tuple(dict(seed) for seed in seeds))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        steps = -(-weight.shape[1] // QUAD)
        filled = np.pad(weight, ((0, 0), (0, steps * QUAD - weight.shape[1])))
        tiles = super().pack_weight(workload, target, config, filled)
        count, _, nb, lanes = tiles.shape
        return np.ascontiguousarray(tiles.reshape(count, steps, QUAD, nb, lanes).transpose(0, 1, 3, 4, 2))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        func = _compute(workload, vector_unit(target).lanes, nb=config["nb"], tile_rows=config["rows"])
        return _schedule(func, config.knobs, dot_product(target))


def _compute(workload: Workload, lanes: int, *, nb: int, tile_rows: int) -> tirx.PrimFunc:
    dense, types, epilogue = dense_of(workload), Types.of(workload), workload.epilogue
    wide, steps = nb * lanes, -(-dense.in_features // QUAD)
    tiles = -(-dense.out_features // wide)
    data = te.placeholder(dense.data_shape, name="data", dtype=types.data)
    weight = te.placeholder((tiles, steps, nb, lanes, QUAD), name="weight", dtype=types.weight)
    extra = epilogue_operands(epilogue, dense.out_shape, types.extra)
    k, q = te.reduce_axis((0, steps), "k"), te.reduce_axis((0, QUAD), "q")
    read, padded_rows = _filled(data, dense), -(-dense.rows // tile_rows) * tile_rows

    def row(i: tirx.PrimExpr) -> tirx.PrimExpr:
        return i if padded_rows == dense.rows else tirx.min(i, dense.rows - 1)  # rows beyond the end repeat the last

    sums = te.compute(
        (padded_rows, tiles, nb, lanes),
        lambda i, o, b, v: te.sum(
            read[row(i), k * QUAD + q].astype(SUMS) * weight[o, k, b, v, q].astype(SUMS), axis=[k, q]
        ),
        name="sums",
    )

    def result(i: tirx.PrimExpr, j: tirx.PrimExpr) -> tirx.PrimExpr:
        summed = sums[i, j // wide, j % wide // lanes, j % lanes]
        return epilogue_value(epilogue, summed, extra, index=(i, j), dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(dense.out_shape, result, name="out")])


def _filled(data: te.Tensor, dense: Dense) -> te.Tensor:
    """Return the data with a multiple of four inputs, in a stage "pad" if it has not."""
    inputs = dense.in_features
    if inputs % QUAD == 0:
        return data
    shape = (dense.rows, -(-inputs // QUAD) * QUAD)
    return te.compute(shape, lambda i, k: tirx.if_then_else(k < inputs, data[i, k], zero(INTEGERS)), name="pad")


def _schedule(func: tirx.PrimFunc, k: Values, dot: str) -> tirx.PrimFunc:
    sch = new_schedule(func)
    sums, out = sch.get_sblock("sums"), sch.get_sblock("out")
    i, o, b, v, kk, q = sch.get_loops(sums)
    io, ii = sch.split(i, [None, k["rows"]])
    ko, ki = sch.split(kk, [None, k["ki"]])
    outer = (o, io) if k["split"] == "channels" else (io, o)
    sch.reorder(*outer, ko, ki, ii, b, v, q)
    sch.parallel(outer[0])
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, outer[1], preserve_unit_loops=True)
    sch.reverse_compute_inline(out)
    for loop in (ki, ii, b):
        sch.unroll(loop)
    unroll_tile(sch, sch.get_loops(write)[-3:])
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(sums, ko))[-3:])
    sch.tensorize(v, dot)
    if has_block(sch, "pad"):
        sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("pad"))[-1], [None, QUAD])[1])
    return sch.mod["main"]
