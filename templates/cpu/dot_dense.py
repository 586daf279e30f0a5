"""What the templates share that compute dense layers by an instruction that sums products: `DotDense`.

They have the knobs and loops of `cpu.dense`. Data is (rows, in) and the output is (rows, out). A group of g
neighbouring inputs of a weight lies together: it is (out / (nb v), in / g, nb, v, g). Inputs are filled up to a
multiple of g.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.target import Target

from templates.blocking import divisors
from templates.cpu.dense import PackedDense
from templates.cpu.dot_products import Products, intrinsic
from templates.cpu.stages import convert_in_registers
from templates.integers import Held, Types, lack, lacking
from templates.space import Space, Values
from templates.stages import epilogue_operands, epilogue_value, has_block, new_schedule, unroll_tile, zero
from templates.workloads import Dense, dense_of
from tuning_db.record import Config, Workload

_CONVERTED = 16  # so many data are converted, or filled up, at once
_REGISTERS = 32  # of ARM's vectors


class DotDense(PackedDense):
    """A template that has the knobs of `PackedDense`. `ki` counts groups of inputs. Weights are not prefetched."""

    @abstractmethod
    def products(self, target: Target) -> Products | None:
        """Return the instruction by which a target multiplies, or None if it has none."""

    def space(self, workload: Workload, target: Target) -> Space | None:
        products = self.products(target)
        if products is None:
            return None
        dense = dense_of(workload)
        steps = replace(dense, in_features=-(-dense.in_features // products.held.group))  # of the reduction
        space = super().space(steps.workload(workload.epilogue, workload.dtype), target)
        assert space is not None
        knobs = tuple(replace(knob, values=(0,)) if knob.name == "prefetch" else knob for knob in space.knobs)
        if products.held.broadcasts:
            space = replace(space, seeds=_widest_first(space, steps, products))
        seeds = dict.fromkeys(tuple({**seed, "prefetch": 0}.items()) for seed in space.seeds)
        return replace(space, knobs=knobs, seeds=tuple(dict(seed) for seed in seeds))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        held = self._found(target).held
        steps = -(-weight.shape[1] // held.group)
        filled = np.pad(weight, ((0, 0), (0, steps * held.group - weight.shape[1])))
        tiles = super().pack_weight(workload, target, config, filled)
        count, _, nb, lanes = tiles.shape
        packed = tiles.reshape(count, steps, held.group, nb, lanes).transpose(0, 1, 3, 4, 2)
        if held.moved:
            last = lacking(packed.swapaxes(1, 2), held.group, outer=2)
            packed = np.concatenate([packed, last.swapaxes(1, 2)], 1)
        return held.packed(packed)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        products, tile = self._found(target), (config["rows"], config["nb"])
        func = _compute(workload, products.held, lanes=products.lanes, tile=tile)
        return _schedule(func, config.knobs, products.held, intrinsic(products))

    def _found(self, target: Target) -> Products:
        products = self.products(target)
        assert products is not None
        return products


def _widest_first(space: Space, dense: Dense, products: Products) -> tuple[Values, ...]:
    """Return the seeds for an instruction beside which repeating a row's values costs as much. Tiles that repeat the
    fewest come first, and of these the largest ones."""
    known = {knob.name: knob.values for knob in space.knobs}
    vectors = -(-dense.out_features // products.lanes)

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        nb, rows = tile
        return -(-vectors // nb) * -(-dense.rows // rows) * (nb + 1) * rows, -nb * rows

    tiles = [(nb, rows) for nb in known["nb"] for rows in known["rows"]]
    fitting = [tile for tile in tiles if prod(tile) + products.held.beside(*tile) <= _REGISTERS]
    return tuple({**space.seeds[0], "nb": nb, "rows": rows} for nb, rows in sorted(fitting, key=cost)[:3])


def _compute(workload: Workload, held: Held, *, lanes: int, tile: tuple[int, int]) -> tirx.PrimFunc:
    (tile_rows, nb), group = tile, held.group
    dense, types, epilogue = dense_of(workload), Types.of(workload), workload.epilogue
    wide, steps = nb * lanes, -(-dense.in_features // group)
    tiles = -(-dense.out_features // wide)
    data = te.placeholder(dense.data_shape, name="data", dtype=types.data)
    shape = (tiles, steps + (4 // group if held.moved else 0), nb, lanes, group)
    weight = te.placeholder(shape, name="weight", dtype=held.weight)
    extra = epilogue_operands(epilogue, dense.out_shape, types.extra)
    k, q = te.reduce_axis((0, steps), "k"), te.reduce_axis((0, group), "q")
    read, padded_rows = _filled(data, dense, held), -(-dense.rows // tile_rows) * tile_rows

    def row(i: tirx.PrimExpr) -> tirx.PrimExpr:
        return i if padded_rows == dense.rows else tirx.min(i, dense.rows - 1)  # rows beyond the end repeat the last

    sums = te.compute(
        (padded_rows, tiles, nb, lanes),
        lambda i, o, b, v: te.sum(held.product(read[row(i), k * group + q], weight[o, k, b, v, q]), axis=[k, q]),
        name="sums",
    )

    def result(i: tirx.PrimExpr, j: tirx.PrimExpr) -> tirx.PrimExpr:
        o, b, v = j // wide, j % wide // lanes, j % lanes
        summed = sums[i, o, b, v]
        if held.moved:
            summed = summed + lack(lambda k, lane, q: weight[o, steps + k, b, lane, q], v, lanes=lanes, group=group)
        return epilogue_value(epilogue, summed, extra, index=(i, j), dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(dense.out_shape, result, name="out")])


def _filled(data: te.Tensor, dense: Dense, held: Held) -> te.Tensor:
    """Return the data with whole groups of inputs, as they are held. They are in a stage "pad" unless they already are
    so."""
    inputs = dense.in_features
    full = inputs % held.group == 0
    if full and not held.converted:
        return data

    def value(i: Any, k: Any) -> tirx.PrimExpr:
        return data[i, k] if full else tirx.if_then_else(k < inputs, data[i, k], zero(str(data.dtype)))

    shape = (dense.rows, -(-inputs // held.group) * held.group)
    width = _converted_at_once(shape[1])
    if held.conversion(width) is None:
        return te.compute(shape, lambda i, k: held.convert(value(i, k)), name="pad")
    edges = te.compute(shape, value, name="edges")
    return te.compute(shape, lambda i, k: held.convert(edges[i, k]), name="pad")


def _converted_at_once(inputs: int) -> int:
    """Return how many of the inputs are converted at once: all groups of as many are whole."""
    return max(divisors(inputs, _CONVERTED))


def _schedule(func: tirx.PrimFunc, k: Values, held: Held, dot: str) -> tirx.PrimFunc:
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
    if has_block(sch, "edges"):
        pad = sch.get_sblock("pad")
        inputs = sch.get_loops(pad)[-1]
        width = _converted_at_once(int(sch.get(inputs).extent))
        convert_in_registers(sch, pad, sch.split(inputs, [None, width])[1], held.conversion(width))
    elif has_block(sch, "pad"):
        sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("pad"))[-1], [None, _CONVERTED])[1])
    return sch.mod["main"]
