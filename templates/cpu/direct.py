"""The templates that compute direct convolutions on a CPU with a register tile. `templates.direct` has the expressions.

The sums of `ob` output blocks by `th` x `tw` pixels are kept in registers. Every iteration of the reduction loads `ob`
weight vectors and broadcasts one input value per pixel. `DirectConv` reads blocked data, `DirectConvPlain` reads NCHW
data with few channels (that of a network's first layer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import blocking, divisors, pack_oihw
from templates.cpu.halves import row_constraints, rows_in_halves
from templates.cpu.isa import HALF, VectorUnit, computes_in, threads_of, vector_unit
from templates.cpu.prefetches import fetches_weights, prefetch_weights
from templates.cpu.product_tiles import Product
from templates.cpu.stages import EVEN, convert_in_registers, even, pad_at_root, spread, waiting, widen_parts
from templates.direct import ORDERS, DirectProblem, direct_compute
from templates.rewrite import guard, mark, peel_tail, wrap_marked_loop
from templates.space import Constraint, Knob, Space, Values
from templates.stages import has_block, new_schedule, unroll_tile
from templates.template import PLAIN, AnchorTemplate, Layout, Layouts
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

# A body with more unrolled multiply-adds than this compiles slowly and does not run faster (measured on AVX-512).
MAX_UNROLLED = 350
# The most input blocks of a chunk: a first-level cache holds their weights for a register tile's output blocks.
MAX_CHUNK = 16
# Weights that this many tiles of pixels read, one after the other, soon come from a cache: prefetching them for the
# first costs all of them up to a fifth of their time. It is worth it where fewer share a read from memory.
_FEW_TILES = 16
# Values of the knob `groups`: they divide the image heights that networks have.
GROUPS = (1, 2, 4, 7, 8, 14, 16, 28, 56, 112)


class DirectConv(AnchorTemplate):
    """A template whose register tile has `ob` output blocks, `th` rows and `tw` columns.

    If `ob` does not divide the output blocks, blocks of zeros are added; if `tw` does not divide the columns, the last
    tile is narrower. The other knobs: `chunk` input blocks are summed over all rows of a group before the next chunk
    (0: all blocks at once, so that sums stay in registers). `ui` input channels are unrolled. `order` is that of the
    reduction's loops. `unroll_kw` unrolls the kernel columns. `inner` says which loop of the register tile is the inner
    one. Rows are cut into `groups`, each of which is one parallel chunk and reads all weights once. `skip` leaves out
    kernel rows that lie in the padding. `prefetch` fetches the next weight block while the current one is used. In half
    precision `sums` says of how many kernel rows, counted over all input blocks, the products are summed before the
    sums are widened to float32 (0: of all); those of a chunk are widened anyway.
    """

    name = "cpu.conv2d_direct"
    op = "conv2d"
    dtypes: tuple[str, ...] = ("float32", HALF)
    sums_halves = True
    plain_data = False
    version = 2

    def _problem(self, workload: Workload, target: Target) -> DirectProblem:
        conv = conv_of(workload)
        blocks = blocking(conv, vector_unit(target, workload.dtype).lanes)
        return DirectProblem(conv, blocks, self.plain_data, dtype=workload.dtype, summed=workload.dtype)

    def _dot(self, target: Target) -> str | None:
        """Return the intrinsic of the instruction that sums products, if it is one."""
        del target
        return None

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        if self.plain_data:
            return conv.in_channels < lanes and conv.groups == 1
        return not conv.is_depthwise and conv.in_channels >= lanes

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(vector_unit(target, workload.dtype).lanes)
        return Layouts(PLAIN if self.plain_data else block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not computes_in(target, workload.dtype):
            return None
        unit = vector_unit(target, workload.dtype)
        if not self.applies(conv_of(workload), unit.lanes):
            return None
        problem = self._problem(workload, target)
        knobs = _knobs(problem, unit.accumulators)
        constraints = _constraints(problem, unit)
        seeds = _seeds(problem, unit, threads_of(target))
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(problem, v))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, target)
        return pack_oihw(problem.conv, problem.blocks.padded(config["ob"]), weight)

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return f"oihw blocks={self._problem(workload, target).blocks.padded(config['ob']).out_blocks}"

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = self._problem(workload, target)
        # Only whole tiles fit the instruction of a dot product.
        tile = (1, config["tw"]) if problem.dots else (1, 1)
        part = config["chunk"] * problem.conv.kernel[0] or config.knobs.get("sums", 0)
        compute = direct_compute(problem, workload.epilogue, tile, ob=config["ob"], part=part)
        func = _schedule(problem, compute, config.knobs, self._dot(target))
        sums = ("part_update" if part else "conv_update") + "_o" * problem.dots  # TVM's name of a tensorised block
        if config["skip"]:
            func = _skip_padded_rows(func, problem.conv, sums)
        if config["prefetch"]:
            func = prefetch_weights(func, problem, config.knobs, sums)
        return func

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        problem, k = self._problem(workload, target), config.knobs
        # Flat pixels can only be cut where the tile divides them, which a narrower one may do.
        widths = range(k["tw"], k["tw"] // 2, -1) if problem.flat else (k["tw"],)
        more = [
            {"tw": tw, "groups": g}
            for tw in widths
            for g in GROUPS
            if g > k["groups"] and _groups_divide(problem, tw, k["th"], g)
        ]
        return spread(config, more, lambda v: _parallel_chunks(problem, v["ob"], v["groups"]), threads_of(target))


class DirectConvPlain(DirectConv):
    """A template with the knobs of `DirectConv` that reads NCHW input of fewer channels than a vector has lanes."""

    name = "cpu.conv2d_direct_nchw"
    plain_data = True


def _tiles(problem: DirectProblem, tw: int, th: int) -> int:
    """Return how many row tiles (if pixels are flat: column tiles) there are to divide into groups."""
    return problem.columns // tw if problem.flat else problem.rows // th


def _groups_divide(problem: DirectProblem, tw: int, th: int, groups: int) -> bool:
    if problem.flat:  # a narrower last tile is possible in one group only
        return groups == 1 or problem.columns % (tw * groups) == 0
    return _tiles(problem, tw, th) % groups == 0


def _knobs(problem: DirectProblem, accumulators: int) -> tuple[Knob, ...]:
    conv, blocks = problem.conv, problem.blocks
    spatial = conv.kernel != (1, 1)
    skippable = (
        spatial
        and not problem.dots
        and bool(conv.padding[0] or conv.padding[2])
        and problem.rows <= 64
        and conv.kernel[0] > 1
    )
    widths = tuple(range(1, min(problem.columns, accumulators) + 1))
    most = max(_tiles(problem, tw, 1) for tw in widths)
    # Flat pixels have no chunks: the output's loops over image rows do not match the tiles, so that its writes cannot
    # be moved behind the chunks.
    chunks = () if problem.flat else divisors(blocks.in_blocks, min(MAX_CHUNK, blocks.in_blocks - 1))
    return (
        Knob("ob", blocks.out_tiles(8)),
        Knob("tw", widths),
        Knob("th", divisors(problem.rows, 4)),
        Knob("chunk", (0, *chunks)),
        Knob("ui", divisors(problem.depths[0], 16)),
        Knob("order", tuple(ORDERS) if spatial else ("c.kh.kw.i",)),
        Knob("unroll_kw", (0, 1) if conv.kernel[1] > 1 else (0,)),
        Knob("inner", ("pixels", "blocks")),
        Knob("groups", tuple(g for g in GROUPS if g <= most)),
        Knob("skip", (0, 1) if skippable else (0,)),
        Knob("prefetch", (0, 1) if fetches_weights(problem) else (0,)),
        *((Knob("sums", rows_in_halves(problem)),) if problem.summed == HALF else ()),
    )


def _constraints(problem: DirectProblem, unit: VectorUnit) -> tuple[Constraint, ...]:
    kernel_width = problem.conv.kernel[1]

    def unrolled(v: Values) -> int:
        return v["ob"] * v["tw"] * v["th"] * v["ui"] * (kernel_width if v["unroll_kw"] else 1)

    def grouped(v: Values) -> bool:
        return _groups_divide(problem, v["tw"], v["th"], v["groups"])

    halves = row_constraints(problem) if problem.summed == HALF else ()
    return (
        *halves,
        Constraint("the register tile does not fit", lambda v: _fits(problem, v["ob"], v["tw"] * v["th"], unit)),
        Constraint("too many unrolled multiply-adds", lambda v: unrolled(v) <= MAX_UNROLLED),
        Constraint("the groups do not divide the tiles", grouped),
        Constraint("only whole sums are prefetched for", lambda v: not (v["prefetch"] and v["chunk"])),
        Constraint("rows can only be skipped in tiles of one row", lambda v: not (v["skip"] and v["th"] > 1)),
    )


def _parallel_chunks(problem: DirectProblem, ob: int, groups: int) -> int:
    return problem.conv.batch * groups * (problem.blocks.padded(ob).all_out_blocks // ob)


def _fits(problem: DirectProblem, ob: int, pixels: int, unit: VectorUnit) -> bool:
    """Tell whether a register tile fits into the registers."""
    if problem.dots:
        return ob * pixels + problem.held.beside(ob, pixels) <= unit.registers
    return ob * pixels <= unit.accumulators


def _fewest_groups(problem: DirectProblem, tile: tuple[int, int], threads: int) -> int:
    """Return the smallest number of row groups with which a register tile (ob, tw) keeps the threads evenly busy. If
    none does, return that with which they wait least."""
    ob, tw = tile

    def cost(groups: int) -> tuple[bool, float]:
        chunks = _parallel_chunks(problem, ob, groups)
        return (False, groups) if even(chunks, threads) else (True, waiting(chunks, threads))

    return min((g for g in GROUPS if _groups_divide(problem, tw, 1, g)), key=cost)


def _seeded_tiles(problem: DirectProblem, unit: VectorUnit, threads: int) -> list[tuple[int, int]]:
    """Return the register tiles (ob, tw) that fill the registers best. The first keeps the threads evenly busy, unless
    that costs more than it saves."""
    broadcasts = problem.dots and problem.held.broadcasts
    most = unit.accumulators if problem.dots else unit.seeded
    tiles = problem.blocks.register_tiles(problem.columns, most, broadcasts=broadcasts)
    tiles = [(ob, tw) for ob, tw in tiles if _fits(problem, ob, tw, unit)]
    product = Product(problem.columns, problem.blocks.out_blocks, 1, problem.blocks.lanes, most)

    def share(tile: tuple[int, int]) -> float:
        return waiting(_parallel_chunks(problem, tile[0], _fewest_groups(problem, tile, threads)), threads)

    first = tiles[0]
    if share(first) > EVEN:
        first = min(tiles, key=lambda tile: product.cost((tile[1], tile[0])) * share(tile))
    return list(dict.fromkeys((first, *tiles)))[:3]


def _seeds(problem: DirectProblem, unit: VectorUnit, threads: int) -> tuple[Values, ...]:
    """Return the tiles that fill the registers best, with and without skipping, row groups and chunks. Weights that few
    tiles read are prefetched."""
    ui = max(divisors(problem.depths[0], 2 if problem.summed == HALF else 4))  # for LLVM loads operands early
    seeds = []
    for ob, tw in _seeded_tiles(problem, unit, threads):
        tile = {"ob": ob, "tw": tw}
        few = problem.rows * -(-problem.columns // tw) <= _FEW_TILES
        most = max(g for g in GROUPS if _groups_divide(problem, tw, 1, g))
        for groups in (_fewest_groups(problem, (ob, tw), threads), most):
            for skip in (1, 0):
                seeds.append({**tile, "ui": ui, "groups": groups, "skip": skip, "prefetch": int(few and groups == 1)})
        seeds.insert(-3, {**tile, "ui": ui, "groups": 1, "skip": 1, "prefetch": 0, "chunk": 1})
    known = {k.name: k.values for k in _knobs(problem, unit.accumulators)}
    return tuple({k: v if v in known[k] else known[k][0] for k, v in seed.items()} for seed in seeds)


def _features(problem: DirectProblem, v: Values) -> Mapping[str, float]:
    """Compute features of the loops: unrolled work, registers, bytes touched between reuses, parallel chunks."""
    conv, b = problem.conv, problem.blocks
    pixels = v["tw"] * v["th"]
    acc = v["ob"] * pixels
    rows = (problem.rows // v["groups"] if not problem.flat else 1) * conv.strides[0]
    return {
        "accumulators": float(acc),
        "loads_per_fma": (v["ob"] + pixels) / acc,
        "body_fmas": float(acc * v["ui"] * (conv.kernel[1] if v["unroll_kw"] else 1)),
        "weight_block_bytes": problem.weight_bytes * v["ob"] / b.all_out_blocks,
        "data_sweep_bytes": float(problem.value_bytes) * rows * conv.width * conv.in_channels / b.groups,
        "waste": problem.blocks.padded(v["ob"]).out_blocks / b.out_blocks,
        "tail": float(problem.columns % v["tw"]) / problem.columns,
        "chunks": float(conv.batch * v["groups"] * (b.all_out_blocks // v["ob"])),
    }


def _schedule(problem: DirectProblem, func: tirx.PrimFunc, k: Values, dot: str | None = None) -> tirx.PrimFunc:
    """Schedule the loops as: row groups | output blocks | (chunks |) rows | columns | (parts |) reduction | register
    tile. `dot` is the intrinsic for integers."""
    sch = new_schedule(func)
    conv = sch.get_sblock("conv")
    n, o, y, x, v, *reduction = sch.get_loops(conv)
    oo, oi = sch.split(o, [None, k["ob"]])
    if problem.flat:
        group, xo, xi = sch.split(x, [k["groups"], None, k["tw"]])
        yo, yi = sch.split(y, [None, 1])
    else:
        group, yo, yi = sch.split(y, [k["groups"], None, k["th"]])
        xo, xi = sch.split(x, [None, k["tw"]])
    steps = reduction[:1] if k["chunk"] else []
    widened = not k["chunk"] and k.get("sums", 0)
    sch.reorder(n, group, oo, *steps, yo, xo, *(reduction if widened else []), oi, yi, xi, v)
    outer = sch.fuse(n, group, oo)
    sch.parallel(outer)
    peel_tail(sch, xo)
    if k["chunk"]:
        sums, written = _add_chunks(sch, conv, steps[0], xo), "out"
        out = sch.get_sblock("out")
        sch.reverse_compute_at(out, outer, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(out)[-1])
    else:
        write = sch.cache_write(conv, 0, "local")
        sch.reverse_compute_at(write, xo, preserve_unit_loops=True)
        sch.reverse_compute_inline(sch.get_sblock("out"))
        unroll_tile(sch, sch.get_loops(write)[-4:])
        sums, written = conv, "conv_local"
        if widened:
            sums = widen_parts(sch, conv, reduction[0], tile=4)
    _schedule_sums(sch, sums, k, dot)
    _schedule_pad(problem, sch)
    return guard(sch.mod["main"], written, {1: problem.blocks.all_out_blocks, 3: problem.columns})


def _add_chunks(sch: Schedule, conv: Any, step: Any, tile: Any) -> Any:
    """Compute a chunk's sums (stage "part") in registers, add them to the stage `conv`, and return the stage "part".

    This happens inside `tile`, the loop over register tiles. The sums of `conv` stay in the first-level cache while all
    tiles use the chunk's weights.
    """
    part = sch.get_sblock("part")
    sch.compute_at(part, tile, preserve_unit_loops=True)
    sch.set_scope(part, 0, "local")
    unroll_tile(sch, sch.get_loops(conv)[-4:])
    sch.vectorize(sch.get_loops(sch.decompose_reduction(conv, step))[-1])
    return part


def _schedule_sums(sch: Schedule, sums: Any, k: Values, dot: str | None) -> None:
    """Schedule the reduction of a register tile. `dot` is the intrinsic that sums products of integers, if it has
    such."""
    loops = sch.get_loops(sums)[-9 if dot else -8 :]
    oi, yi, xi, v, ic, kh, kw, ii, *quad = loops
    io, iu = sch.split(ii, [None, k["ui"]])
    outer = {"ic": ic, "kh": kh, "kw": kw, "io": io, "iu": iu}
    tile = [yi, xi, oi, v] if k["inner"] == "pixels" else [oi, yi, xi, v]
    sch.reorder(*(outer[name] for name in ORDERS[k["order"]]), *tile, *quad)
    mark(sch, kh)
    for loop in (iu, oi, yi, xi, *([kw] if k["unroll_kw"] else [])):
        sch.unroll(loop)
    if dot is None:
        sch.vectorize(v)
    init = sch.decompose_reduction(sums, ic)
    unroll_tile(sch, sch.get_loops(init)[-4:])
    if dot is not None:
        sch.tensorize(v, dot)


def _schedule_pad(problem: DirectProblem, sch: Schedule) -> None:
    if not has_block(sch, "pad"):
        return
    if problem.plain_data and not problem.dots:
        loops = sch.get_loops(sch.get_sblock("pad"))
        sch.parallel(sch.fuse(*loops[:3]))
    elif has_block(sch, "edges"):
        pad, width = sch.get_sblock("pad"), problem.depth
        loops = sch.get_loops(pad)
        sch.parallel(sch.fuse(*loops[:3]))
        convert_in_registers(sch, pad, loops[-1], problem.held.conversion(width))
    else:
        pad_at_root(sch, "pad")


def _skip_padded_rows(func: tirx.PrimFunc, conv: Conv2d, block: str) -> tirx.PrimFunc:
    """Run a kernel row only if it meets the image. This saves a tenth of the work of a 7x7 image with padding 1."""

    def guarded(loop: Any, index: Any) -> Any:
        row = index[-7]  # y of (n, o, y, x, v, ic, kh, kw, ii), which follow the chunk's index if there are chunks
        y = row * conv.strides[0] + loop.loop_var * conv.dilation[0]
        inside = tirx.all(y >= conv.padding[0], y < conv.height + conv.padding[0])
        return tirx.IfThenElse(inside, loop.body, None)

    return wrap_marked_loop(func, block, guarded)
