"""The expressions that `templates.gpu.winograd` and `templates.gpu.winograd_group` compute, and the former's schedule.

Start at `winograd_compute` and `schedule_winograd`. The templates explain the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from templates.gpu.limits import GpuLimits
from templates.gpu.opencl_text import prefetch
from templates.gpu.stages import (
    Group,
    cooperate,
    into_registers,
    launch,
    own_kernel,
    own_loops,
    split_init,
    vector_widths,
)
from templates.rewrite import mark
from templates.space import Values
from templates.stages import epilogue_operands, epilogue_value, new_schedule, unroll_tile, zero_padded
from templates.winograd_algebra import MATRICES, WinogradTiles, row_of
from templates.winograd_products import ProductTile, prefetch_products


@dataclass(frozen=True)
class WinogradProblem(WinogradTiles):
    """A Winograd convolution on a device, with methods that derive groups, registers and memory from knob values."""

    limits: GpuLimits

    def covered(self, v: Values) -> int:
        """Return how many tiles whole groups of the matrix products compute."""
        tile = v["pt"] * v["pi"]
        return -(-self.tiles // tile) * tile

    def waste(self, v: Values) -> float:
        return self.covered(v) / self.tiles

    def group(self, v: Values) -> Group:
        """Return the shape of a group of the matrix products."""
        return Group(v["kt"], 1, v["pt"] * (self.blocks.lanes // v["vec"]))

    def groups(self, v: Values) -> int:
        return self.a**2 * (self.covered(v) // (v["pt"] * v["pi"])) * (self.blocks.out_blocks // (v["kt"] * v["ki"]))

    def sums(self, v: Values) -> int:
        """Return how many values an item keeps in registers: its sums, and on a GPU the channels of its tiles.

        A CPU has the channels on its stack.
        """
        tiles = v["pi"] * self.blocks.in_lanes if v["vv"] == "local" and self.limits.family != "cpu" else 0
        return v["ki"] * v["pi"] * v["vec"] + tiles

    def local_bytes(self, v: Values) -> int:
        b, values = self.blocks, 0
        if v["vv"] == "shared":
            values += v["pt"] * v["pi"]
        if v["wshared"]:
            values += v["kt"] * v["ki"] * b.lanes
        return 4 * v["ct"] * b.in_lanes * values


def _row(matrix: Sequence[Sequence[float]], index: Any, get: Callable[[int], Any]) -> Any:
    return row_of(matrix, index, get, tirx.if_then_else)


def winograd_compute(p: WinogradProblem, epilogue: tuple[str, ...], covered: int) -> tirx.PrimFunc:
    """Build the unscheduled function, whose stages are pad -> t1, vv (input) -> mm -> t2, out (output and epilogue).

    Input tiles are transformed and multiplied up to a number of `covered` tiles, some of which may be in vain.
    """
    conv, b, a, m = p.conv, p.blocks, p.a, p.m
    bt, _, at = MATRICES[m]
    lanes, ny, nx = b.lanes, p.tiles_y, p.tiles_x
    data = te.placeholder((conv.batch, b.in_blocks, conv.height, conv.width, lanes), name="data")
    weight = te.placeholder((a, a, b.out_blocks, b.in_blocks, lanes, lanes), name="weight")
    out_shape = (conv.batch, b.out_blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape)
    top, left = conv.padding[:2]
    pad = te.compute(
        (conv.batch, b.in_blocks, ny * m + 2, nx * m + 2, lanes),
        lambda n, c, y, x, v: zero_padded(
            lambda py, px: data[n, c, py, px, v], y - top, x - left, height=conv.height, width=conv.width
        ),
        name="pad",
    )

    def pixel(c: Any, tile: Any, i: Any, *, j: Any, v: Any) -> Any:
        if covered > p.tiles:  # tiles beyond the last are multiplied in vain: any values will do
            tile = tirx.min(tile, p.tiles - 1)
        return pad[tile // (ny * nx), c, tile // nx % ny * m + i, tile % nx * m + j, v]

    t1 = te.compute(
        (b.in_blocks, covered, a, a, lanes),
        lambda c, t, e, j, v: _row(bt, e, lambda i: pixel(c, t, i, j=j, v=v)),
        name="t1",
    )
    vv = te.compute(
        (a, a, b.in_blocks, covered, lanes),
        lambda e, q, c, t, v: _row(bt, q, lambda j: t1[c, t, e, j, v]),
        name="vv",
    )
    ib, ii = te.reduce_axis((0, b.in_blocks), "ib"), te.reduce_axis((0, lanes), "ii")
    mm = te.compute(
        (a, a, b.out_blocks, covered, lanes),
        lambda e, q, o, t, v: te.sum(vv[e, q, ib, t, ii] * weight[e, q, o, ib, ii, v], axis=[ib, ii]),
        name="mm",
    )
    t2 = te.compute(
        (b.out_blocks, p.tiles, m, a, lanes),
        lambda o, t, i, q, v: _row(at, i, lambda e: mm[e, q, o, t, v]),
        name="t2",
    )

    def result(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        tile = (n * ny + y // m) * nx + x // m
        value = _row(at, x % m, lambda q: t2[o, tile, y % m, q, v])
        return epilogue_value(epilogue, value, extra, index=(n, o, y, x, v))

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def schedule_winograd(p: WinogradProblem, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the function: the transforms of input and output, and the products between them."""
    sch = new_schedule(func)
    _schedule_output(p, sch, k)
    _schedule_input(sch, k)
    _schedule_products(p, sch, k)
    func = sch.mod["main"]
    return _prefetch_weights(func, p, k) if k.get("prefetch", 0) else func


def _over_items(sch: Schedule, loops: Sequence[Any], items: int) -> Any:
    """Bind loops to groups of `items`, and return the loop over items."""
    block, item = sch.split(sch.fuse(*loops), [None, items])
    return launch(sch, {"blockIdx.x": [block], "threadIdx.x": [item]})["threadIdx.x"]


def _schedule_output(p: WinogradProblem, sch: Schedule, k: Values) -> None:
    """Let an item compute the output of one tile and `tv` channels, with "t2" in registers."""
    out = sch.get_sblock("out")
    n, o, y, x, v = sch.get_loops(out)
    ty, yi = sch.split(y, [None, p.m])
    tx, xi = sch.split(x, [None, p.m])
    vt, vi = sch.split(v, [None, k["tv"]])
    sch.reorder(n, o, ty, tx, vt, yi, xi, vi)
    item = _over_items(sch, [n, o, ty, tx, vt], k["items"])
    into_registers(sch, sch.get_sblock("t2"), item, k["tv"])
    unroll_tile(sch, [yi, xi, vi])


def _schedule_input(sch: Schedule, k: Values) -> None:
    """Let an item transform the input of one tile and `tv` channels, with "t1" in registers.

    If `pad` is "local", the part of the padded input that the item reads is in registers as well.
    """
    vv, pad = sch.get_sblock("vv"), sch.get_sblock("pad")
    e, q, c, t, v = sch.get_loops(vv)
    vt, vi = sch.split(v, [None, k["tv"]])
    sch.reorder(c, t, vt, e, q, vi)
    item = _over_items(sch, [c, t, vt], k["items"])
    into_registers(sch, sch.get_sblock("t1"), item, k["tv"])
    unroll_tile(sch, [e, q, vi])
    if k["pad"] == "local":
        into_registers(sch, pad, item, k["tv"])
    else:
        own_kernel(sch, pad, k["items"], k["tv"])


def _schedule_products(p: WinogradProblem, sch: Schedule, k: Values) -> None:
    """Schedule the loops as: groups | items | input blocks | reduction | register tile.

    Copies into local memory are made inside the outer loop over input blocks.
    """
    mm, group = sch.get_sblock("mm"), p.group(k)
    e, q, o, t, v, ib, ii = sch.get_loops(mm)
    ob, ot, oi = sch.split(o, [None, k["kt"], k["ki"]])
    tb, tt, ti = sch.split(t, [None, k["pt"], k["pi"]])
    vt, vi = sch.split(v, [None, k["vec"]])
    co, ci = sch.split(ib, [None, k["ct"]])
    io, iu = sch.split(ii, [None, k["ui"]])
    tile = [ti, oi, vi] if k["inner"] == "tiles" else [oi, ti, vi]
    sch.reorder(e, q, ob, tb, ot, tt, vt, co, ci, io, iu, *tile)
    tags = {"blockIdx.z": [e, q], "blockIdx.y": [ob], "blockIdx.x": [tb], "threadIdx.z": [ot], "threadIdx.x": [tt, vt]}
    item = launch(sch, tags)["threadIdx.x"]
    write = sch.cache_write(mm, 0, "local")
    sch.reverse_compute_at(write, item, preserve_unit_loops=True)
    unroll_tile(sch, own_loops(sch, write))
    width = vector_widths(p.limits, p.blocks.in_lanes)[0]
    if k["vv"] == "shared":
        cooperate(sch, sch.cache_read(mm, 0, "shared"), co, group=group, vector=width)
    elif k["vv"] == "local":
        into_registers(sch, sch.cache_read(mm, 0, "local"), ci, width)
    if k["wshared"]:
        cooperate(sch, sch.cache_read(mm, 1, "shared"), co, group=group, vector=k["vec"])
    unroll_tile(sch, [iu, *tile])
    mark(sch, ci)
    split_init(sch, mm, co)


def _prefetch_weights(func: tirx.PrimFunc, p: WinogradProblem, k: Values) -> tirx.PrimFunc:
    """Prefetch the next output blocks' weights.

    A CPU runs the items of a group one after the other, those along the tiles first.
    """
    register = ProductTile(k["ki"], k["pi"], blocks_outer=True)
    return prefetch_products(func, p.blocks.lanes, register, at_once=k["pt"] * k["pi"], fetch=prefetch)
