"""The template that computes Winograd convolutions F(m x m, 3 x 3), with m = 2 or 4, in blocked layout on a CPU.

Input tiles of (m+2)^2 pixels are transformed (stage "vv") and multiplied with transformed weights, as (m+2)^2
independent matrix products on the direct template's register tile ("mm"). The products are transformed back ("t2",
"out"). F(4) does a quarter of the direct algorithm's multiplications, F(2) four ninths. The rounding error grows from
about 3e-7 to about 1e-5 of the largest output.

In half precision the transforms are computed in float32, and their results are stored as halves. F(2) is off by up to
4e-3 of the largest output then, as the direct algorithm is; F(4) would be by 1e-2 to 8e-2, and is left out.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import blocking, divisors
from templates.cpu.halves import MOST_TERMS, parts_of
from templates.cpu.isa import HALF, computes_in, vector_unit
from templates.cpu.stages import pad_at_root, widen_parts
from templates.rewrite import peel_tail, prefetch
from templates.space import Constraint, Knob, Space, Values
from templates.stages import (
    epilogue_operands,
    epilogue_value,
    new_schedule,
    padded_with,
    stored_as,
    unroll_tile,
    widened,
    zero,
)
from templates.template import AnchorTemplate, Layout, Layouts
from templates.winograd_algebra import MATRICES, WinogradTiles, row_of, suits_winograd, transformed_weight
from templates.winograd_products import ProductTile, prefetch_products, tile_products
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

MAX_UNROLLED = 350
# The most sums of a seed's register tile. Reductions are short, so that loads and stores of tiles count for more.
_MOST_SUMS = 20
# Bytes of transformed input and products of all tiles from which on a row of tiles at a time is faster: about twice
# what the second cache level of today's CPUs holds.
_LARGE = 5 << 19
_FEWEST_PIXELS = 36  # of an image; on smaller ones too many tiles stick out


class Winograd(AnchorTemplate):
    """A template that computes tiles of `m` x `m` pixels, `ob` output blocks by `tiles` tiles in a register tile.

    Tiles are counted row by row. Neither `ob` nor `tiles` needs to divide: the last register tile is narrower, and
    blocks of zeros are added. The other knobs: `at` is "group" if all stages run per group of `rows` tile rows, and
    "root" if each stage runs over everything before the next. `ui` input channels are unrolled. `blocks` says whether
    the loop over output blocks is "outer" or "inner" to that over tiles, and `inner` which loop of the register tile is
    the inner one. `pad` says where the padded input is computed: at the "root", per "row" of tiles or per "group".
    `prefetch` fetches the next weight block while the current one is used. In half precision `sums` says of how many
    input blocks the products are summed before the sums are widened to float32 (0: of all).
    """

    name = "cpu.conv2d_winograd"
    op = "conv2d"
    dtypes: tuple[str, ...] = ("float32", HALF)
    sums_halves = True
    exact = False
    spreads_nan = True
    version = 2

    def _problem(self, workload: Workload, target: Target, m: int) -> WinogradTiles:
        conv = conv_of(workload)
        return WinogradTiles(conv, blocking(conv, vector_unit(target, workload.dtype).lanes), m)

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(vector_unit(target, workload.dtype).lanes)
        return Layouts(block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not computes_in(target, workload.dtype):
            return None
        unit, half = vector_unit(target, workload.dtype), workload.dtype == HALF
        problems = {m: self._problem(workload, target, m) for m in MATRICES if m == 2 or not half}
        if not suits_winograd(problems[2].conv, unit.lanes):
            return None
        constraints = _constraints(problems, unit.accumulators)
        seeds = _seeds(problems, min(unit.seeded, _MOST_SUMS))
        knobs = _knobs(problems, unit.accumulators)
        if half:
            blocks = problems[2].blocks
            sums = Knob("sums", parts_of(blocks.in_blocks, MOST_TERMS // blocks.in_lanes))
            knobs = *(k if k.name != "prefetch" else Knob("prefetch", (0,)) for k in knobs), sums
            seeds = tuple({**seed, "prefetch": 0, "ui": 2, "sums": sums.values[0]} for seed in seeds)
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(problems[v["m"]], v))

    def leads(self, workload: Workload, target: Target) -> bool:
        """Let it lead in float32 on images that are not tiny, where it takes about half of the direct template's time
        on almost all layers that were measured (AVX-512 and AVX2)."""
        conv = conv_of(workload)
        return workload.dtype != HALF and conv.out_height * conv.out_width >= _FEWEST_PIXELS

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        padded = self._problem(workload, target, config["m"]).blocks.padded(config["ob"])
        return f"m={config['m']} blocks={padded.out_blocks}"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, target, config["m"])
        packed = transformed_weight(problem.m, problem.blocks.padded(config["ob"]), weight)
        return packed.astype(workload.dtype)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = self._problem(workload, target, config["m"])
        func = _schedule(problem, _compute(problem, workload, config.knobs), config.knobs)
        return _prefetch_weights(func, problem, config.knobs) if config["prefetch"] else func


def _knobs(problems: Mapping[int, WinogradTiles], accumulators: int) -> tuple[Knob, ...]:
    def union(values: Callable[[WinogradTiles], Sequence[int]]) -> tuple[int, ...]:
        return tuple(sorted({v for p in problems.values() for v in values(p)}))

    blocks = problems[2].blocks
    return (
        Knob("m", tuple(problems)),
        Knob("at", ("root", "group")),
        Knob("rows", union(lambda p: divisors(p.tiles_y, 14))),
        Knob("tiles", union(lambda p: range(1, min(p.tiles, accumulators) + 1))),
        Knob("ob", blocks.out_tiles(8)),
        Knob("ui", divisors(blocks.in_lanes, 16)),
        Knob("blocks", ("outer", "inner")),
        Knob("inner", ("pixels", "blocks")),
        Knob("pad", ("root", "row", "group")),
        Knob("prefetch", (0, 1)),
    )


def _constraints(problems: Mapping[int, WinogradTiles], accumulators: int) -> tuple[Constraint, ...]:
    def of(v: Values) -> WinogradTiles:
        return problems[v["m"]]

    def tile(v: Values) -> int:
        return v["ob"] * v["tiles"]

    return (
        Constraint("the groups do not divide the rows of tiles", lambda v: of(v).tiles_y % v["rows"] == 0),
        Constraint("there are fewer tiles than that", lambda v: v["tiles"] <= of(v).tiles),
        Constraint("register tiles do not divide a group", lambda v: v["at"] == "root" or _divides_group(of(v), v)),
        Constraint("the register tile does not fit", lambda v: tile(v) <= accumulators),
        Constraint("too many unrolled multiply-adds", lambda v: tile(v) * v["ui"] <= MAX_UNROLLED),
        Constraint("there is no group to pad in", lambda v: v["pad"] != "group" or v["at"] == "group"),
        Constraint("a batch is padded at once", lambda v: v["pad"] == "root" or of(v).conv.batch == 1),
    )


def _divides_group(p: WinogradTiles, v: Values) -> bool:
    # A narrower last tile of a group would write into the next group's tiles.
    return v["rows"] * p.tiles_x % v["tiles"] == 0 and p.blocks.out_blocks % v["ob"] == 0


def _written(p: WinogradTiles) -> int:
    """Return how many bytes of transformed input and of products there are of all tiles."""
    return 4 * p.a * p.a * p.tiles * (p.conv.in_channels + p.conv.out_channels)


def _seeds(problems: Mapping[int, WinogradTiles], sums: int) -> tuple[Values, ...]:
    """Return for each m the register tiles with the fewest loads per multiply-add, up to `sums`.

    Each comes with all stages at the root, and with all stages per row of tiles where tiles divide one. The latter come
    first where a cache does not hold what all stages at the root write.
    """
    seeds: list[Values] = []
    for rank, m in itertools.product(range(2), sorted(problems, reverse=True)):
        p = problems[m]
        tiles = p.blocks.register_tiles(p.tiles, sums)
        rows = p.tiles_y if p.tiles_y <= 14 else max(divisors(p.tiles_y, 14))
        common = {"m": m, "ui": max(divisors(p.blocks.in_lanes, 4)), "inner": "pixels", "prefetch": 0}
        tile = dict(zip(("ob", "tiles"), tiles[min(rank, len(tiles) - 1)], strict=True))
        root = {**common, **tile, "at": "root", "pad": "root", "rows": rows, "blocks": "outer"}
        kinds = [[root, {**root, "blocks": "inner"}, {**root, "prefetch": 1}]]
        per_row = {**common, "at": "group", "pad": "row" if p.conv.batch == 1 else "root", "rows": 1, "blocks": "inner"}
        dividing = [t for ob, n in tiles if _divides_group(p, t := {**per_row, "ob": ob, "tiles": n})]
        if dividing:
            row = dividing[min(rank, len(dividing) - 1)]
            kinds.insert(0 if _written(p) > _LARGE else 1, [row, {**row, "prefetch": 1}, {**row, "blocks": "outer"}])
        seeds += [kind[0] for kind in kinds] + [seed for kind in kinds for seed in kind[1:]]
    return tuple(seeds)


def _features(p: WinogradTiles, v: Values) -> Mapping[str, float]:
    tile = v["ob"] * v["tiles"]
    squares = p.a * p.a
    rows = v["rows"] if v["at"] == "group" else p.tiles_y
    covered = p.tiles_y * p.tiles_x * p.m * p.m / (p.conv.out_height * p.conv.out_width)
    return {
        "accumulators": float(tile),
        "loads_per_fma": (v["ob"] + v["tiles"]) / tile,
        "body_fmas": float(tile * v["ui"]),
        "wino_multiplications": squares / (9.0 * p.m * p.m) * covered,
        "weight_block_bytes": 4.0 * p.blocks.in_blocks * p.blocks.in_lanes * v["ob"] * p.blocks.lanes,
        "wino_weight_bytes": 4.0 * squares * p.conv.in_channels * p.conv.out_channels,
        "wino_tiles_bytes": 4.0 * squares * rows * p.tiles_x * p.conv.in_channels,
        "chunks": float(p.tile_rows // v["rows"] if v["at"] == "group" else squares),
    }


def _compute(p: WinogradTiles, workload: Workload, k: Values) -> tirx.PrimFunc:
    """Build the unscheduled function, whose stages are pad -> t1, vv (input) -> mm -> t2, out (output and epilogue)."""
    conv, b, a, m = p.conv, p.blocks, p.a, p.m
    bt, _, at = MATRICES[m]
    lanes, ny, nx, dtype = b.lanes, p.tiles_y, p.tiles_x, workload.dtype
    padded = p.blocks.padded(k["ob"]).out_blocks
    data = te.placeholder((conv.batch, b.in_blocks, conv.height, conv.width, lanes), name="data", dtype=dtype)
    weight = te.placeholder((a, a, padded, b.in_blocks, lanes, lanes), name="weight", dtype=dtype)
    out_shape = (conv.batch, b.out_blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(workload.epilogue, out_shape, dtype)
    top, left = conv.padding[:2]
    pad = te.compute(
        (conv.batch, b.in_blocks, ny * m + 2, nx * m + 2, lanes),
        lambda n, c, y, x, v: padded_with(
            zero(dtype), lambda py, px: data[n, c, py, px, v], y - top, x - left, size=(conv.height, conv.width)
        ),
        name="pad",
    )
    t1 = te.compute(
        (p.tile_rows, nx, b.in_blocks, a, a, lanes),
        lambda ty, tx, c, e, j, v: row_of(bt, e, lambda i: widened(pad[ty // ny, c, (ty % ny) * m + i, tx * m + j, v])),
        name="t1",
    )
    vv = te.compute(
        (a, a, p.tile_rows, nx, b.in_blocks, lanes),
        lambda e, q, ty, tx, c, v: stored_as(row_of(bt, q, lambda j: t1[ty, tx, c, e, j, v]), dtype),
        name="vv",
    )
    mm = _products(p, vv, weight, k.get("sums", 0))
    t2 = te.compute(
        (b.out_blocks, p.tile_rows, nx, m, a, lanes),
        lambda o, ty, tx, i, q, v: row_of(at, i, lambda e: widened(mm[e, q, o, ty * nx + tx, v])),
        name="t2",
    )

    def result(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        value = row_of(at, x % m, lambda q: t2[o, n * ny + y // m, x // m, y % m, q, v])
        return epilogue_value(workload.epilogue, value, extra, index=(n, o, y, x, v), dtype=dtype)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def _products(p: WinogradTiles, vv: te.Tensor, weight: te.Tensor, part: int) -> te.Tensor:
    """Return the stage "mm". If `part` is not 0, a stage "part" sums over each `part` input blocks, and "mm" adds up
    these partial sums in float32."""
    shape, nx = (p.a, p.a, int(weight.shape[2]), p.tiles, p.blocks.lanes), p.tiles_x
    ib, ii = te.reduce_axis((0, part or p.blocks.in_blocks), "ib"), te.reduce_axis((0, p.blocks.lanes), "ii")

    def total(first: Any, e: Any, q: Any, o: Any, t: Any, v: Any) -> Any:
        c = first + ib
        return te.sum(vv[e, q, t // nx, t % nx, c, ii] * weight[e, q, o, c, ii, v], axis=[ib, ii])

    if not part:
        return te.compute(shape, lambda *index: total(0, *index), name="mm")
    count = p.blocks.in_blocks // part
    parts = te.compute((count, *shape), lambda c, *index: total(c * part, *index), name="part")
    step = te.reduce_axis((0, count), "step")
    return te.compute(shape, lambda *index: te.sum(widened(parts[step, *index]), axis=step), name="mm")


def _schedule(p: WinogradTiles, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    sch = new_schedule(func)
    at_root = k["at"] == "root"
    group = schedule_output(p, sch, k, at_root)
    if not at_root:
        for name in ("mm", *(["part"] if k.get("sums", 0) else []), "vv"):
            sch.compute_at(sch.get_sblock(name), group, preserve_unit_loops=True)
    schedule_input(sch, k, at_root, group)
    _schedule_products(sch, k, at_root)
    return sch.mod["main"]


def schedule_output(p: WinogradTiles, sch: Schedule, k: Values, at_root: bool) -> Any:
    """Compute the output tile by tile, with "t2" in registers, and return the loop over row groups."""
    out, t2 = sch.get_sblock("out"), sch.get_sblock("t2")
    n, o, y, x, v = sch.get_loops(out)
    ty, yi = sch.split(y, [None, p.m])
    tx, xi = sch.split(x, [None, p.m])
    group, ti = sch.split(ty, [None, k["rows"]])
    sch.reorder(n, group, o, ti, tx, yi, xi, v)
    if at_root:
        group = sch.fuse(n, group, o)
        sch.parallel(group)
    else:
        group = sch.fuse(n, group)
        sch.parallel(group)
    sch.compute_at(t2, tx, preserve_unit_loops=True)
    sch.set_scope(t2, 0, "local")
    unroll_tile(sch, [xi, v])
    _unroll_transform(sch, t2)
    return group


def schedule_input(sch: Schedule, k: Values, at_root: bool, group: Any) -> None:
    """Transform the input one row of tiles after the other, with "t1" in registers."""
    vv, t1, pad = sch.get_sblock("vv"), sch.get_sblock("t1"), sch.get_sblock("pad")
    e, q, ty, tx, c, v = sch.get_loops(vv)[-6:]
    sch.reorder(ty, c, tx, e, q, v)
    if at_root:
        sch.parallel(ty)
    sch.compute_at(t1, tx, preserve_unit_loops=True)
    sch.set_scope(t1, 0, "local")
    unroll_tile(sch, [q, v])
    _unroll_transform(sch, t1)
    if k["pad"] == "root":
        pad_at_root(sch, "pad")
        return
    sch.compute_at(pad, c if k["pad"] == "row" else group, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(pad)[-1])


def _unroll_transform(sch: Schedule, block: Any) -> None:
    """Unroll the outputs of a one-dimensional transform, but not the loop over the vectors that it is applied to.

    Unrolling both gives the same speed and takes a fifth more time to compile.
    """
    outputs, vectors, lane = sch.get_loops(block)[-3:]
    sch.reorder(vectors, outputs, lane)
    unroll_tile(sch, [outputs, lane])


def _register_tile(k: Values) -> ProductTile:
    return ProductTile(k["ob"], k["tiles"], k["blocks"] == "outer")


def _schedule_products(sch: Schedule, k: Values, at_root: bool) -> None:
    """Schedule the products on the direct template's register tile, with `ob` blocks by `tiles` tiles."""
    if k.get("sums", 0):
        _schedule_widened_products(sch, k, at_root)
        return
    loops = tile_products(sch, _register_tile(k), ui=k["ui"], tiles_first=k["inner"] == "pixels")
    if at_root:
        sch.parallel(sch.fuse(*loops.products))
    peel_tail(sch, loops.tiles)
    unroll_tile(sch, [loops.unrolled, *loops.register_tile])
    unroll_tile(sch, sch.get_loops(loops.write)[-3:])
    sch.decompose_reduction(sch.get_sblock("mm"), loops.blocks)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("mm_init"))[-3:])


def _schedule_widened_products(sch: Schedule, k: Values, at_root: bool) -> None:
    """Schedule the products on the same register tile, where "mm" adds up the sums of the stage "part"."""
    mm, register = sch.get_sblock("mm"), _register_tile(k)
    e, q, o, t, v, step = sch.get_loops(mm)[-6:]
    oo, oi = sch.split(o, [None, register.ob])
    to, ti = sch.split(t, [None, register.tiles])
    middle = (oo, to) if register.blocks_outer else (to, oo)
    sch.reorder(e, q, *middle, step, oi, ti, v)
    if at_root:
        sch.parallel(sch.fuse(e, q))
    peel_tail(sch, to)
    write = sch.cache_write(mm, 0, "local")
    sch.reverse_compute_at(write, middle[-1], preserve_unit_loops=True)
    unroll_tile(sch, sch.get_loops(write)[-3:])
    part = widen_parts(sch, mm, step, tile=3)
    oi, ti, v, ib, ii = sch.get_loops(part)[-5:]
    io, iu = sch.split(ii, [None, k["ui"]])
    tile = (ti, oi, v) if k["inner"] == "pixels" else (oi, ti, v)
    sch.reorder(ib, io, iu, *tile)
    unroll_tile(sch, [iu, *tile])
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(part, ib))[-3:])


def _prefetch_weights(func: tirx.PrimFunc, p: WinogradTiles, k: Values) -> tirx.PrimFunc:
    at_once = p.tiles if k["at"] == "root" else k["rows"] * p.tiles_x
    return prefetch_products(func, p.blocks.lanes, _register_tile(k), at_once=at_once, fetch=prefetch)
