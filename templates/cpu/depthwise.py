"""The template that computes depthwise convolutions in blocked layout on a CPU. Start at `Depthwise`.

Every lane is a channel of its own, and the sums of a tile of pixels are kept in registers. Data is (N, C/v, H, W, v),
weights are (C/v, R, S, v), and the output is (N, C/v, OH, OW, v).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import divisors, tile_sizes
from templates.cpu.halves import MOST_TERMS
from templates.cpu.isa import HALF, computes_in, threads_of, vector_unit
from templates.cpu.stages import even_first, pad_at_root, spread
from templates.depthwise import depthwise_compute, pack_depthwise, sums_are_exact
from templates.integers import INTEGERS
from templates.rewrite import mark, prefetch, wrap_marked_loop
from templates.space import Constraint, Knob, Space, Values
from templates.stages import has_block, new_schedule, unroll_tile
from templates.template import AnchorTemplate, Layout, Layouts
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

MAX_UNROLLED = 450
_WIDEST_HALVES = 8  # pixels of a first config's tile, with which LLVM keeps the weights in registers as well


class Depthwise(AnchorTemplate):
    """A template whose register tile has `th` x `tw` pixels.

    Its other knobs: `rows` is the number of output rows in a parallel chunk (0: all rows of a channel block). `order`
    says which of the loops over row chunks ("rows") and channel blocks ("channels") is the outer one. `pad` says where
    the input is padded: where it is read ("inline"), in a copy per chunk ("chunk"), or in a copy of all ("root").
    `unroll_kh` unrolls the kernel rows. `prefetch` fetches the next block's weights at the start of a chunk.
    """

    name = "cpu.depthwise"
    op = "conv2d"
    dtypes: tuple[str, ...] = ("float32", HALF)
    sums_halves = True

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(vector_unit(target, workload.dtype).lanes)
        return Layouts(block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        conv = conv_of(workload)
        unit, kernel = vector_unit(target, workload.dtype), conv.kernel[0] * conv.kernel[1]
        if not conv.is_depthwise or not computes_in(target, workload.dtype):
            return None
        if workload.dtype == HALF and kernel > MOST_TERMS:
            return None
        limit, integer = unit.registers - (unit.operands or 2), INTEGERS in self.dtypes
        padded = any(conv.padding)
        knobs = (
            Knob("tw", tile_sizes(conv.out_width, limit)),
            Knob("th", divisors(conv.out_height, 4)),
            Knob("rows", (0, *chunk_rows(conv))),
            Knob("order", ("rows", "channels")),
            Knob("pad", _pads(padded, integer)),
            Knob("unroll_kh", (1, 0)),
            Knob("prefetch", (0, 1)),
        )

        def unrolled(v: Values) -> int:
            return v["tw"] * v["th"] * (kernel if v["unroll_kh"] else conv.kernel[1])

        constraints = (
            Constraint("the register tile does not fit", lambda v: v["tw"] * v["th"] <= limit),
            Constraint("too many unrolled multiply-adds", lambda v: unrolled(v) <= MAX_UNROLLED),
            Constraint("the tile does not divide the chunk", lambda v: (v["rows"] or conv.out_height) % v["th"] == 0),
            Constraint("a whole block has no row order", lambda v: v["rows"] > 0 or v["order"] == "channels"),
            # A tile that sticks out reads beyond the image: only the padded copies are wide enough.
            Constraint(
                "an inlined padding needs dividing tiles",
                lambda v: v["pad"] != "inline" or conv.out_width % v["tw"] == 0,
            ),
        )
        chunks = row_chunks(conv, unit.lanes)
        widest = min(limit, _WIDEST_HALVES) if workload.dtype == HALF else limit
        seeds = even_first(_seeds(conv, widest, _pads(padded, integer)), chunks, threads_of(target))
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(conv, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return "blocked"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return pack_depthwise(weight, vector_unit(target, workload.dtype).lanes)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        conv = conv_of(workload)
        tile, lanes = (config["th"], config["tw"]), vector_unit(target, workload.dtype).lanes
        summed = HALF if workload.dtype == HALF else "float32"
        func = depthwise_compute(workload, lanes, tile, summed=summed)
        func = _schedule(conv, func, config.knobs)
        return _prefetch_weights(func, conv) if config["prefetch"] else func

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        conv = conv_of(workload)
        rows = [r for r in sorted(chunk_rows(conv), reverse=True) if r % config["th"] == 0]
        changes = [{"rows": r, "order": "rows"} for r in rows]
        return spread(config, changes, row_chunks(conv, vector_unit(target, workload.dtype).lanes), threads_of(target))


class IntegerDepthwise(Depthwise):
    """A template that has the knobs of `Depthwise`, for integers. They are converted to float32 where they are padded,
    and their sums are exact in it."""

    name = "cpu.depthwise_integer"
    dtypes = (INTEGERS,)

    def space(self, workload: Workload, target: Target) -> Space | None:
        return super().space(workload, target) if sums_are_exact(conv_of(workload)) else None

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return super().pack_weight(workload, target, config, weight.astype(np.float32))


def chunk_rows(conv: Conv2d) -> tuple[int, ...]:
    """Return the numbers of rows that a chunk may have."""
    return tuple(d for d in divisors(conv.out_height, 56) if d in (1, 2, 4, 7, 8, 14, 28, 56))


def row_chunks(conv: Conv2d, lanes: int) -> Callable[[Values], int]:
    """Return a function that counts the parallel chunks of a config: those of the knob `rows`, in all blocks."""
    blocks = conv.batch * -(-conv.in_channels // lanes)
    return lambda v: blocks * (conv.out_height // (v["rows"] or conv.out_height))


def _pads(padded: bool, integer: bool) -> tuple[str, ...]:
    """Return the places where the input may be padded. Integers are converted there."""
    if integer:
        return "chunk", "root"
    return ("inline", "chunk", "root") if padded else ("inline",)


def _seeds(conv: Conv2d, limit: int, pads: tuple[str, ...]) -> tuple[Values, ...]:
    """Return tiles that are wide and divide the width. A large kernel's rows are not unrolled."""
    seeds: list[Values] = []
    for th in divisors(conv.out_height, 2):
        widest = min(limit // th, 14, MAX_UNROLLED // (th * conv.kernel[1]))
        exact = divisors(conv.out_width, max(widest, 1))
        unroll_kh = int(th * exact[-1] * conv.kernel[0] * conv.kernel[1] <= MAX_UNROLLED)
        for rows, order in ((0, "channels"), (max(divisors(conv.out_height, 14)), "rows")):
            for pad in pads:
                place = {"rows": rows, "order": order, "pad": pad}
                seeds.append({"th": th, "tw": exact[-1], **place, "unroll_kh": unroll_kh})
    return tuple(seeds)


def _features(conv: Conv2d, v: Values) -> Mapping[str, float]:
    kernel = conv.kernel[0] * conv.kernel[1]
    pixels = v["tw"] * v["th"]
    rows = v["rows"] or conv.out_height
    return {
        "accumulators": float(pixels),
        "body_fmas": float(pixels * (kernel if v["unroll_kh"] else conv.kernel[1])),
        "waste": -(-conv.out_width // v["tw"]) * v["tw"] / conv.out_width,
        "data_sweep_bytes": 64.0 * conv.width * rows * conv.strides[0],
        "chunks": float(conv.batch * (conv.out_height // rows)),
    }


def _schedule(conv: Conv2d, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    sch = new_schedule(func)
    block = sch.get_sblock("conv")
    n, c, y, x, v, kh, kw = sch.get_loops(block)
    rows = k["rows"] or conv.out_height
    chunk, yo, yi = sch.split(y, [None, rows // k["th"], k["th"]])
    xo, xi = sch.split(x, [None, k["tw"]])
    outer = (chunk, c) if k["order"] == "rows" else (c, chunk)
    sch.reorder(n, *outer, yo, xo, kh, kw, yi, xi, v)
    parallel = sch.fuse(n, *outer)
    sch.parallel(parallel)
    mark(sch, parallel)
    write = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(write, xo, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    schedule_pad(sch, k["pad"], parallel)
    unroll_tile(sch, [*([kh] if k["unroll_kh"] else []), kw, yi, xi, v])
    unroll_tile(sch, sch.get_loops(write)[-3:])
    sch.decompose_reduction(block, kh)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("conv_init"))[-3:])
    return sch.mod["main"]


def schedule_pad(sch: Schedule, where: str, parallel: Any) -> None:
    """Schedule the padding, if there is any, as the knob `pad` says. `parallel` is the loop over chunks."""
    if not has_block(sch, "pad"):
        return
    pad = sch.get_sblock("pad")
    if where == "inline":
        sch.compute_inline(pad)
    elif where == "chunk":
        sch.compute_at(pad, parallel, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(pad)[-1])
    else:
        pad_at_root(sch, "pad")


def _prefetch_weights(func: tirx.PrimFunc, conv: Conv2d) -> tirx.PrimFunc:
    """Prefetch the next channel block's kernel at the start of a chunk."""
    weight = func.params[1]

    def fetching(loop: Any, index: Any) -> Any:
        block = index[1] + 1
        taps = [(r, s) for r in range(conv.kernel[0]) for s in range(conv.kernel[1])]
        return tirx.SeqStmt([*(prefetch(weight, [block, r, s, 0]) for r, s in taps), loop.body])

    return wrap_marked_loop(func, "conv_update", fetching)
