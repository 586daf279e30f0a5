"""Direct convolution in blocked layout with a register tile (CPU).

Data (N, C/v, H, W, v), weights (K/v, C/v, R, S, v in, v out), output (N, K/v, OH, OW, v). A tile of `ob` output blocks
by `th` x `tw` pixels lives in registers; every step of the reduction loads `ob` weight vectors and broadcasts one
input value per pixel. `DirectConv` reads blocked data, `DirectConvPlain` reads NCHW (a first layer's few channels).
Widths that a tile does not divide are computed on a padded row and cut off when the tile is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.cpu.blocking import Blocking, blocking, divisors, pack_oihw, tile_sizes
from templates.cpu.isa import vector_unit
from templates.cpu.rewrite import CACHE_LINE_FLOATS, mark, prefetch, wrap_marked_loop
from templates.cpu.stages import (
    epilogue_operands,
    epilogue_value,
    has_block,
    new_schedule,
    pad_at_root,
    unroll_tile,
    zero_padded,
)
from templates.space import Constraint, Knob, Space, Values
from templates.template import PLAIN, Layout, Layouts, Template
from templates.workloads import Conv2d, anchor_of
from tuning_db.record import Config, Workload

# More unrolled multiply-adds than this compile slowly and do not run faster (measured on AVX-512).
MAX_UNROLLED = 350
# Prefetching pays only where a layer's weights do not stay in a core's first caches anyway.
PREFETCH_BYTES = 128 * 1024

_ORDERS = {
    "c.kh.kw.i": ("ic", "kh", "kw", "io", "iu"),
    "c.kh.i.kw": ("ic", "kh", "io", "kw", "iu"),
    "c.i.kh.kw": ("ic", "io", "kh", "kw", "iu"),
}


@dataclass(frozen=True)
class _Problem:
    """A convolution as this template sees it. Pixels are one flat axis where the kernel is 1x1 without stride."""

    conv: Conv2d
    blocks: Blocking
    plain_data: bool

    @property
    def flat(self) -> bool:
        c = self.conv
        return c.kernel == (1, 1) and c.strides == (1, 1) and not any(c.padding) and not self.plain_data

    @property
    def rows(self) -> int:
        return 1 if self.flat else self.conv.out_height

    @property
    def columns(self) -> int:
        return self.conv.out_height * self.conv.out_width if self.flat else self.conv.out_width

    def wide(self, tw: int) -> int:
        """Columns rounded up to whole tiles."""
        return -(-self.columns // tw) * tw

    @property
    def weight_bytes(self) -> int:
        b = self.blocks
        return 4 * b.all_out_blocks * b.in_blocks * b.in_lanes * b.lanes * prod(self.conv.kernel)

    def groups_of(self, tw: int, th: int) -> int:
        """How many row tiles (flat: column tiles) there are to divide into groups."""
        return self.wide(tw) // tw if self.flat else self.rows // th


class DirectConv(Template):
    """Knobs: `ob` output blocks, `th` rows and `tw` columns of the register tile; `ui` input channels unrolled;
    `order` of the reduction; `groups` of rows that are one parallel chunk and sweep all weights once; `skip` kernel
    rows that lie in the padding; `prefetch` the next weight block while this one is used."""

    name = "cpu.conv2d_direct"
    op = "conv2d"
    plain_data = False

    def _problem(self, workload: Workload, target: Target) -> _Problem:
        conv = anchor_of(workload)
        assert isinstance(conv, Conv2d)
        return _Problem(conv, blocking(conv, vector_unit(target).lanes), self.plain_data)

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        return not conv.is_depthwise and conv.in_channels >= lanes

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(vector_unit(target).lanes)
        return Layouts(PLAIN if self.plain_data else block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if target.kind.name != "llvm":
            return None
        unit = vector_unit(target)
        problem = self._problem(workload, target)
        if not self.applies(problem.conv, unit.lanes):
            return None
        knobs = _knobs(problem, unit.accumulators)
        constraints = _constraints(problem, unit.accumulators)
        return Space(self.name, knobs, constraints, _seeds(problem, unit.accumulators), lambda v: _features(problem, v))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, target)
        return pack_oihw(problem.conv, problem.blocks, weight)

    def weight_key(self, config: Config) -> str:
        return "oihw"

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = self._problem(workload, target)
        func = _schedule(problem, _compute(problem, workload.epilogue, config["tw"]), config.knobs)
        if config["skip"]:
            func = _skip_padded_rows(func, problem.conv)
        if config["prefetch"]:
            func = _prefetch_weights(func, problem, config.knobs)
        return func


class DirectConvPlain(DirectConv):
    """The same with NCHW input, for inputs of fewer channels than a vector has lanes."""

    name = "cpu.conv2d_direct_nchw"
    plain_data = True

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        return conv.in_channels < lanes and conv.groups == 1


def _knobs(problem: _Problem, accumulators: int) -> tuple[Knob, ...]:
    conv, blocks = problem.conv, problem.blocks
    spatial = conv.kernel != (1, 1)
    skippable = spatial and bool(conv.padding[0] or conv.padding[2]) and problem.rows <= 64 and conv.kernel[0] > 1
    widths = tile_sizes(problem.columns, accumulators)
    most = max(problem.groups_of(tw, 1) for tw in widths)
    return (
        Knob("ob", divisors(blocks.out_blocks, 8)),
        Knob("tw", widths),
        Knob("th", divisors(problem.rows, 4)),
        Knob("ui", divisors(blocks.in_lanes, 16)),
        Knob("order", tuple(_ORDERS) if spatial else ("c.kh.kw.i",)),
        Knob("unroll_kw", (0, 1) if conv.kernel[1] > 1 else (0,)),
        Knob("inner", ("pixels", "blocks")),
        Knob("groups", tuple(g for g in (1, 2, 4, 7, 8, 14, 16, 28, 56, 112) if g <= most)),
        Knob("skip", (0, 1) if skippable else (0,)),
        Knob("prefetch", (0, 1) if problem.weight_bytes > PREFETCH_BYTES and not problem.plain_data else (0,)),
    )


def _constraints(problem: _Problem, accumulators: int) -> tuple[Constraint, ...]:
    kernel_width = problem.conv.kernel[1]

    def unrolled(v: Values) -> int:
        return v["ob"] * v["tw"] * v["th"] * v["ui"] * (kernel_width if v["unroll_kw"] else 1)

    return (
        Constraint("the register tile does not fit", lambda v: v["ob"] * v["tw"] * v["th"] <= accumulators),
        Constraint("too many unrolled multiply-adds", lambda v: unrolled(v) <= MAX_UNROLLED),
        Constraint(
            "the groups do not divide the tiles", lambda v: problem.groups_of(v["tw"], v["th"]) % v["groups"] == 0
        ),
        Constraint("rows can only be skipped in tiles of one row", lambda v: not (v["skip"] and v["th"] > 1)),
    )


def _seeds(problem: _Problem, accumulators: int) -> tuple[Values, ...]:
    """Tiles that fill the registers best, with and without skipping, prefetching and row groups."""
    tiles = []
    for ob in divisors(problem.blocks.out_blocks, 4):
        for tw in tile_sizes(problem.columns, accumulators // ob):
            waste = problem.wide(tw) / problem.columns
            balance = (ob + tw) / (ob * tw)  # loads per multiply-add
            tiles.append((balance * waste, {"ob": ob, "tw": tw}))
    best = [tile for _, tile in sorted(tiles, key=lambda t: t[0])[:3]]
    ui = max(divisors(problem.blocks.in_lanes, 4))
    seeds = []
    for tile in best:
        count = problem.groups_of(tile["tw"], 1)
        for groups in (1, max(g for g in (1, 2, 4, 7, 8, 14, 28, 56, 112) if count % g == 0)):
            for skip in (1, 0):
                seeds.append({**tile, "ui": ui, "groups": groups, "skip": skip, "prefetch": int(groups == 1)})
    known = {k.name: k.values for k in _knobs(problem, accumulators)}
    return tuple({k: v if v in known[k] else known[k][0] for k, v in seed.items()} for seed in seeds)


def _features(problem: _Problem, v: Values) -> Mapping[str, float]:
    """What the loops say: work per unrolled body, registers, bytes touched between reuses, parallel chunks."""
    conv, b = problem.conv, problem.blocks
    pixels = v["tw"] * v["th"]
    acc = v["ob"] * pixels
    sweep_rows = problem.rows // v["groups"] if not problem.flat else 1
    return {
        "accumulators": float(acc),
        "loads_per_fma": (v["ob"] + pixels) / acc,
        "body_fmas": float(acc * v["ui"] * (conv.kernel[1] if v["unroll_kw"] else 1)),
        "weight_block_bytes": problem.weight_bytes * v["ob"] / b.all_out_blocks,
        "data_sweep_bytes": 4.0 * conv.in_channels / b.groups * conv.width * (sweep_rows * conv.strides[0]),
        "waste": problem.wide(v["tw"]) / problem.columns,
        "chunks": float(conv.batch * v["groups"] * (b.all_out_blocks // v["ob"])),
    }


def _reader(problem: _Problem, data: te.Tensor, tw: int) -> Callable[..., Any]:
    """read(n, block, y, x, lane) over whole tiles: through a padding stage where pixels outside the image are read."""
    conv, b = problem.conv, problem.blocks
    (sy, sx), (dy, dx), (kh, kw) = conv.strides, conv.dilation, conv.kernel
    top, left = conv.padding[:2]
    reach_y = (problem.rows - 1) * sy + (kh - 1) * dy + 1
    reach_x = (problem.wide(tw) - 1) * sx + (kw - 1) * dx + 1
    all_in = b.groups * b.in_blocks
    if problem.plain_data:
        pad = te.compute(
            (conv.batch, b.in_lanes, reach_y, reach_x),
            lambda n, c, y, x: zero_padded(
                lambda py, px: data[n, c, py, px], y - top, x - left, conv.height, conv.width
            ),
            name="pad",
        )
        return lambda n, _c, y, x, v: pad[n, v, y, x]
    if problem.flat:
        width, pixels = conv.out_width, problem.columns
        if reach_x == pixels:
            return lambda n, c, _y, x, v: data[n, c, x // width, x % width, v]
        flat = te.compute(
            (conv.batch, all_in, 1, reach_x, b.in_lanes),
            lambda n, c, _y, x, v: tirx.if_then_else(
                x < pixels, data[n, c, x // width, x % width, v], tirx.const(0.0, "float32")
            ),
            name="pad",
        )
        return lambda n, c, y, x, v: flat[n, c, y, x, v]
    if not any(conv.padding) and reach_x <= conv.width:
        return lambda n, c, y, x, v: data[n, c, y, x, v]
    blocked = te.compute(
        (conv.batch, all_in, reach_y, reach_x, b.in_lanes),
        lambda n, c, y, x, v: zero_padded(
            lambda py, px: data[n, c, py, px, v], y - top, x - left, conv.height, conv.width
        ),
        name="pad",
    )
    return lambda n, c, y, x, v: blocked[n, c, y, x, v]


def _compute(problem: _Problem, epilogue: tuple[str, ...], tw: int) -> tirx.PrimFunc:
    """pad (where needed) -> conv on whole tiles -> out with the epilogue."""
    conv, b = problem.conv, problem.blocks
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    blocked = (conv.batch, b.groups * b.in_blocks, conv.height, conv.width, b.in_lanes)
    data = te.placeholder(conv.data_shape if problem.plain_data else blocked, name="data")
    weight = te.placeholder((b.all_out_blocks, b.in_blocks, *conv.kernel, b.in_lanes, b.lanes), name="weight")
    out_shape = (conv.batch, b.all_out_blocks, conv.out_height, conv.out_width, b.lanes)
    extra = epilogue_operands(epilogue, out_shape)
    read = _reader(problem, data, tw)
    ic, kh = te.reduce_axis((0, b.in_blocks), "ic"), te.reduce_axis((0, conv.kernel[0]), "kh")
    kw, ii = te.reduce_axis((0, conv.kernel[1]), "kw"), te.reduce_axis((0, b.in_lanes), "ii")

    def tap(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        block = ic if b.groups == 1 else (o // b.out_blocks) * b.in_blocks + ic
        return read(n, block, y * sy + kh * dy, x * sx + kw * dx, ii) * weight[o, ic, kh, kw, ii, v]

    sums = te.compute(
        (conv.batch, b.all_out_blocks, problem.rows, problem.wide(tw), b.lanes),
        lambda *index: te.sum(tap(*index), axis=[ic, kh, kw, ii]),
        name="conv",
    )

    def result(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        value = sums[n, o, 0, y * conv.out_width + x, v] if problem.flat else sums[n, o, y, x, v]
        return epilogue_value(epilogue, value, extra, (n, o, y, x, v))

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def _schedule(problem: _Problem, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Row groups | output blocks | rows | columns | reduction | register tile."""
    sch = new_schedule(func)
    conv = sch.get_sblock("conv")
    n, o, y, x, v, ic, kh, kw, ii = sch.get_loops(conv)
    oo, oi = sch.split(o, [None, k["ob"]])
    io, iu = sch.split(ii, [None, k["ui"]])
    if problem.flat:
        group, xo, xi = sch.split(x, [k["groups"], None, k["tw"]])
        yo, yi = sch.split(y, [None, 1])
    else:
        group, yo, yi = sch.split(y, [k["groups"], None, k["th"]])
        xo, xi = sch.split(x, [None, k["tw"]])
    loops = {"ic": ic, "kh": kh, "kw": kw, "io": io, "iu": iu}
    tile = [yi, xi, oi, v] if k["inner"] == "pixels" else [oi, yi, xi, v]
    sch.reorder(n, group, oo, yo, xo, *(loops[name] for name in _ORDERS[k["order"]]), *tile)
    sch.parallel(sch.fuse(n, group, oo))
    mark(sch, kh)
    write = sch.cache_write(conv, 0, "local")
    sch.reverse_compute_at(write, xo, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    for loop in (iu, oi, yi, xi, *([kw] if k["unroll_kw"] else [])):
        sch.unroll(loop)
    sch.vectorize(v)
    unroll_tile(sch, sch.get_loops(write)[-4:])
    _schedule_pad(problem, sch)
    sch.decompose_reduction(conv, ic)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("conv_init"))[-4:])
    return sch.mod["main"]


def _schedule_pad(problem: _Problem, sch: Schedule) -> None:
    if not has_block(sch, "pad"):
        return
    if problem.plain_data:
        loops = sch.get_loops(sch.get_sblock("pad"))
        sch.parallel(sch.fuse(*loops[:3]))
    else:
        pad_at_root(sch, "pad")


def _skip_padded_rows(func: tirx.PrimFunc, conv: Conv2d) -> tirx.PrimFunc:
    """Run a kernel row only where it meets the image: at 7x7 with padding 1 this saves a tenth of the work."""

    def guarded(loop: Any, index: Any) -> Any:
        y = index[2] * conv.strides[0] + loop.loop_var * conv.dilation[0]
        inside = tirx.all(y >= conv.padding[0], y < conv.height + conv.padding[0])
        return tirx.IfThenElse(inside, loop.body, None)

    return wrap_marked_loop(func, "conv_update", guarded)


def _prefetch_weights(func: tirx.PrimFunc, problem: _Problem, k: Values) -> tirx.PrimFunc:
    """While block b is reused over S tiles, fetch 1/S of block b+1 in each: cold weights arrive when needed."""
    conv, b = problem.conv, problem.blocks
    tiles_x = problem.wide(k["tw"]) // k["tw"]
    if problem.flat:
        tiles_x //= k["groups"]
        sweeps = tiles_x
    else:
        sweeps = tiles_x * (problem.rows // k["th"] // k["groups"])
    lines = conv.kernel[1] * b.in_lanes * b.lanes // CACHE_LINE_FLOATS  # of one (block, ic, kh)
    share = -(-lines // sweeps)
    per_lane = max(1, b.lanes * b.in_lanes // CACHE_LINE_FLOATS)
    weight = func.params[1]

    def fetching(loop: Any, index: Any) -> Any:
        _, o, y, x, _, ic = index[:6]
        row = y // k["th"] % (sweeps // tiles_x) if not problem.flat else 0
        sweep = row * tiles_x + x // k["tw"] % tiles_x
        fetches = []
        for i in range(k["ob"]):
            for j in range(share):
                line = sweep * share + j
                lane = line % per_lane * CACHE_LINE_FLOATS
                at = [o + k["ob"] + i, ic, loop.loop_var, line // per_lane, lane // b.lanes, lane % b.lanes]
                fetches.append(prefetch(weight, at))
        return tirx.SeqStmt([*fetches, loop.body])

    return wrap_marked_loop(func, "conv_update", fetching)
