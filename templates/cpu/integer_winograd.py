"""The template that computes Winograd convolutions F(2 x 2, 3 x 3) of 8-bit integers, where a CPU multiplies in int16.

It has the stages and knobs of `cpu.winograd`, and does four ninths of the direct algorithm's multiplications. It is
exact: transformed data lie between -1020 and 1020. Weights are transformed by twice the matrix G, so that they are
whole, and at most 1152. The sums are four times the convolution's, and are divided by a shift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import divisors
from templates.cpu.dot_products import Products, intrinsic, multiplied_by, products_of
from templates.cpu.isa import vector_unit
from templates.cpu.winograd import Winograd, schedule_input, schedule_output
from templates.integers import INTEGERS, Types
from templates.space import Constraint, Knob, Space, Values
from templates.stages import border_of, epilogue_operands, epilogue_value, new_schedule, padded_with, unroll_tile, zero
from templates.winograd_algebra import WinogradTiles, row_of, transformed_weight
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

_M = 2
# Those of `winograd_algebra`, but that the third row of the input's has the other sign, and the weight's, too: a row
# that begins with 1 needs no multiplication.
_INPUT = [[1, 0, -1, 0], [0, 1, 1, 0], [0, 1, -1, 0], [0, 1, 0, -1]]
_SIGNS = np.array([1, 1, -1, 1])
_OUTPUT = [[1, 1, 1, 0], [0, 1, -1, -1]]
_SHIFT = 2  # the sums are 2 ** _SHIFT times the convolution's
_MOST_CHANNELS = (2**31 - 1) // (1020 * 1152)  # whose sums fit into int32


class IntegerWinograd(Winograd):
    """A template that has the knobs of `Winograd`, for integers. Tiles have 2 x 2 pixels, and weights are not
    prefetched."""

    name = "cpu.conv2d_winograd_integer"
    dtypes = (INTEGERS,)
    exact = True
    spreads_nan = False
    version = 1

    def space(self, workload: Workload, target: Target) -> Space | None:
        products, conv = products_of(target), conv_of(workload)
        if products is None or products.held.weight != "int16" or conv.in_channels > _MOST_CHANNELS:
            return None
        space = super().space(conv.workload(workload.epilogue), target)
        if space is None:
            return None
        problem, registers = self._problem(workload, target, _M), vector_unit(target).registers
        steps = problem.blocks.in_lanes // products.held.group

        def fits(v: Values) -> bool:
            return v["ob"] * v["tiles"] + products.held.beside(v["ob"], v["tiles"]) <= registers

        kept: dict[str, Callable[[Any], bool]] = {
            "m": lambda m: m == _M,
            "rows": lambda rows: problem.tiles_y % rows == 0,
            "tiles": lambda tiles: tiles <= problem.tiles,
            "ui": lambda ui: steps % ui == 0,
            "prefetch": lambda far: far == 0,
        }
        knobs = tuple(Knob(k.name, tuple(filter(kept.get(k.name, lambda _: True), k.values))) for k in space.knobs)
        constraint = Constraint("the register tile does not fit beside its operands", fits)
        seeds = _seeds(problem, fits, registers, max(divisors(steps, 4)))
        return replace(space, knobs=knobs, constraints=(*space.constraints, constraint), seeds=seeds)

    def leads(self, workload: Workload, target: Target) -> bool:
        return True

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        blocks = self._problem(workload, target, _M).blocks.padded(config["ob"])
        group = multiplied_by(target).held.group
        signs = np.outer(_SIGNS, _SIGNS)[..., None, None, None, None]
        whole = (transformed_weight(_M, blocks, weight) * (signs * 2**_SHIFT)).astype(np.int16)
        *outer, depth, lanes = whole.shape
        return np.ascontiguousarray(whole.reshape(*outer, depth // group, group, lanes).swapaxes(-1, -2))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem, products = self._problem(workload, target, _M), multiplied_by(target)
        func = _compute(problem, workload.epilogue, products, config.knobs)
        return _schedule(problem, func, config.knobs, intrinsic(products))


def _seeds(p: WinogradTiles, fits: Callable[[Values], bool], registers: int, ui: int) -> tuple[Values, ...]:
    """Return the register tiles with the fewest loads per multiply-add, with all stages per row of tiles where they
    divide one, and with all stages at the root."""
    common = {"m": _M, "ui": ui, "inner": "pixels", "prefetch": 0}
    found = [dict(zip(("ob", "tiles"), tile, strict=True)) for tile in p.blocks.register_tiles(p.tiles, registers)]
    fitting = [tile for tile in found if fits(tile)]
    dividing = [v for v in fitting if p.tiles_x % v["tiles"] == 0 and p.blocks.out_blocks % v["ob"] == 0]
    at_root = {**common, "at": "root", "rows": p.tiles_y, "pad": "root"}
    grouped = {**common, "at": "group", "rows": 1, "blocks": "inner", "pad": "row" if p.conv.batch == 1 else "root"}
    return (
        *({**grouped, **tile} for tile in dividing[:2]),
        *({**at_root, **tile, "blocks": blocks} for tile in fitting[:2] for blocks in ("outer", "inner")),
    )


def _compute(p: WinogradTiles, epilogue: tuple[str, ...], products: Products, k: Values) -> tirx.PrimFunc:
    """Build the unscheduled function, whose stages are those of `winograd`: pad -> t1, vv -> mm -> t2, out."""
    conv, b, a, held = p.conv, p.blocks, p.a, products.held
    lanes, ny, nx, group = b.lanes, p.tiles_y, p.tiles_x, held.group
    types, padded = Types.named(INTEGERS, epilogue), b.padded(k["ob"]).out_blocks
    data = te.placeholder((conv.batch, b.in_blocks, conv.height, conv.width, lanes), name="data", dtype=types.data)
    shape = (a, a, padded, b.in_blocks, lanes // group, lanes, group)
    weight = te.placeholder(shape, name="weight", dtype=held.weight)
    out_shape = (conv.batch, b.out_blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape, types.extra)
    vv = _transformed(p, data, border_of(epilogue, extra), products)
    count = -(-p.tiles // k["tiles"]) * k["tiles"] if k["at"] == "root" else p.tiles
    ib, ii, g = (
        te.reduce_axis((0, size), name) for size, name in ((b.in_blocks, "ib"), (lanes // group, "ii"), (group, "g"))
    )

    def total(e: Any, q: Any, o: Any, t: Any, v: Any) -> Any:
        tile = t if count == p.tiles else tirx.min(t, p.tiles - 1)  # tiles beyond the end repeat the last
        value = vv[e, q, tile // nx, tile % nx, ib, ii * group + g]
        return te.sum(held.product(value, weight[e, q, o, ib, ii, v, g]), axis=[ib, ii, g])

    mm = te.compute((a, a, padded, count, lanes), total, name="mm")
    t2 = te.compute(
        (b.out_blocks, p.tile_rows, nx, _M, a, lanes),
        lambda o, ty, tx, i, q, v: row_of(_OUTPUT, i, lambda e: mm[e, q, o, ty * nx + tx, v]),
        name="t2",
    )

    def result(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        value = row_of(_OUTPUT, x % _M, lambda q: t2[o, n * ny + y // _M, x // _M, y % _M, q, v])
        at = (n, o, y, x, v)
        return epilogue_value(epilogue, value >> _SHIFT, extra, at, dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def _transformed(p: WinogradTiles, data: te.Tensor, border: Any, products: Products) -> te.Tensor:
    """Return the transformed data, as they are held."""
    conv, ny, nx, held = p.conv, p.tiles_y, p.tiles_x, products.held
    (top, left), size, lanes = conv.padding[:2], (conv.height, conv.width), p.blocks.lanes
    outside = zero(INTEGERS) if border is None else border
    pad = te.compute(
        (conv.batch, p.blocks.in_blocks, ny * _M + 2, nx * _M + 2, lanes),
        lambda n, c, y, x, v: held.convert(
            padded_with(outside, lambda py, px: data[n, c, py, px, v], y - top, x - left, size=size)
        ),
        name="pad",
    )
    t1 = te.compute(
        (p.tile_rows, nx, p.blocks.in_blocks, p.a, p.a, lanes),
        lambda ty, tx, c, e, j, v: row_of(_INPUT, e, lambda i: pad[ty // ny, c, (ty % ny) * _M + i, tx * _M + j, v]),
        name="t1",
    )
    return te.compute(
        (p.a, p.a, p.tile_rows, nx, p.blocks.in_blocks, lanes),
        lambda e, q, ty, tx, c, v: row_of(_INPUT, q, lambda j: t1[ty, tx, c, e, j, v]),
        name="vv",
    )


def _schedule(p: WinogradTiles, func: tirx.PrimFunc, k: Values, dot: str) -> tirx.PrimFunc:
    sch = new_schedule(func)
    at_root = k["at"] == "root"
    group = schedule_output(p, sch, k, at_root)
    if not at_root:
        sch.compute_at(sch.get_sblock("mm"), group, preserve_unit_loops=True)
        sch.compute_at(sch.get_sblock("vv"), group, preserve_unit_loops=True)
    schedule_input(sch, k, at_root, group)
    _schedule_products(sch, k, at_root, dot)
    return sch.mod["main"]


def _schedule_products(sch: Schedule, k: Values, at_root: bool, dot: str) -> None:
    """Schedule the products on a register tile of `ob` blocks by `tiles` tiles, with the instruction `dot`."""
    mm = sch.get_sblock("mm")
    e, q, o, t, v, ib, ii, g = sch.get_loops(mm)[-8:]
    oo, oi = sch.split(o, [None, k["ob"]])
    to, ti = sch.split(t, [None, k["tiles"]])
    io, iu = sch.split(ii, [None, k["ui"]])
    middle = (oo, to) if k["blocks"] == "outer" else (to, oo)
    tile = (ti, oi) if k["inner"] == "pixels" else (oi, ti)
    sch.reorder(e, q, *middle, ib, io, iu, *tile, v, g)
    write = sch.cache_write(mm, 0, "local")
    sch.reverse_compute_at(write, middle[-1], preserve_unit_loops=True)
    if at_root:
        sch.parallel(sch.fuse(e, q))
    for loop in (iu, *tile):
        sch.unroll(loop)
    unroll_tile(sch, sch.get_loops(write)[-3:])
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(mm, ib))[-3:])
    sch.tensorize(v, dot)
