"""The templates that compute direct convolutions on OpenCL and CUDA devices with a register tile.

`templates.direct` has the expressions. A work-item holds the sums of `ki` vectors of output channels by `yi` x `xi`
pixels. A group computes `kt` x `yt` x `xt` such tiles, with one item for each vector of `vec` lanes of a channel block.
Input and weights are read straight from global memory, through registers, or through local memory that the items of a
group fill together. Integers are read four channels at a time (`templates.words`). `GpuDirectConv` reads blocked data,
`GpuDirectConvPlain` reads NCHW data with few channels (that of a network's first layer).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import blocking, divisors, pack_oihw
from templates.direct import ORDERS, DirectProblem, direct_compute
from templates.gpu.dots import held_words, packed_words
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import (
    cooperate,
    cpu_sums_constraint,
    into_own_memory,
    into_registers,
    launch,
    launch_features,
    limit_constraints,
    overlap_copies,
    own_kernel,
    searched_widths,
    split_init,
    write_back,
)
from templates.gpu.tiling import PATCH, SHARED, Tiling, turns
from templates.integers import AS_GIVEN, INTEGERS
from templates.space import Constraint, Knob, Space, Values
from templates.stages import has_block, new_schedule, unroll_tile
from templates.template import PLAIN, AnchorTemplate, Layout, Layouts
from templates.words import in_dots
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

STAGED = ("local", PATCH, *SHARED)  # values of `pad` that copy the input even if nothing is padded
PAD_GROUP = 64
# The largest ratio of computed pixels to needed ones. Configs that exceed it are never fast.
MAX_WASTE = 1.34
# The most unrolled multiply-adds if each has a condition of its own: these take far longer to compile.
MAX_CONDITIONS = 128
# The largest copy that an item makes of its input. A copy that does not fit into the second cache level would be read
# from memory again and again.
MAX_PATCH_BYTES = 96 << 10
# This many tiles of an item are tried for a seed config, best first, until one has a valid group.
_ITEM_TILES = 16
# The fewest work-items of a group. With fewer most lanes of a GPU's SIMD unit are idle.
MIN_ITEMS = 16


class GpuDirectConv(AnchorTemplate):
    """A template whose work-items compute `ki` channel blocks by `yi` rows by `xi` columns each.

    A group has `kt` x `yt` x `xt` such tiles. The other knobs:

    - `vec` is the number of lanes of a vector.
    - `pad` says where the padded input is kept: in registers ("local"), nowhere ("inline"), in memory that a kernel of
      its own fills ("kernel"), in local memory ("shared", or "shared_local" with a row in registers), or in an item's
      own memory (`PATCH`, on CPUs only).
    - `wshared` copies weights into local memory. `ct` is the number of input blocks per copy into local memory.
    - `order` is that of the reduction's loops. `inner` says which loop of a tile is the inner one.
    - `ui` input channels are unrolled. `unroll_kw` and `unroll_kh` unroll kernel columns and rows.
    - `asynchronous` copies the next input blocks into local memory while the current ones are computed with (Nvidia
      from compute capability 8.0 on; compiled only, not run).
    - `turns` is the number of tiles of channels that an item computes one after the other on the same pixels (CPUs).
    """

    name = "gpu.conv2d_direct"
    op = "conv2d"
    dtypes = ("float32", "float16", INTEGERS)
    plain_data = False

    def _tiling(self, workload: Workload, limits: GpuLimits) -> Tiling:
        conv = conv_of(workload)
        blocks, held = blocking(conv, limits.lanes), AS_GIVEN
        if workload.dtype == INTEGERS:
            held = held_words(limits)
            blocks = replace(blocks, in_lanes=-(-blocks.in_lanes // held.group) * held.group)
        return Tiling(DirectProblem(conv, blocks, self.plain_data, dtype=workload.dtype, held=held), limits)

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        return not conv.is_depthwise and conv.in_channels >= lanes

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(gpu_limits_of(target).lanes)
        return Layouts(PLAIN if self.plain_data else block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or not limits.stores(workload.dtype):
            return None
        tiling = self._tiling(workload, limits)
        if not self.applies(tiling.problem.conv, limits.lanes):
            return None
        knobs = _knobs(tiling)
        constraints = _constraints(tiling, knobs)
        seeds = _seeds(tiling, knobs, constraints)
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(tiling, v))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        tiling = self._tiling(workload, gpu_limits_of(target))
        packed = pack_oihw(tiling.problem.conv, tiling.blocks(config.knobs), weight)
        return packed_words(packed, tiling.problem.held) if tiling.problem.words else packed

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        tiling = self._tiling(workload, gpu_limits_of(target))
        return f"oihw blocks={tiling.blocks(config.knobs).out_blocks}"

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        tiling = self._tiling(workload, gpu_limits_of(target))
        k = config.knobs
        tile, staged = tiling.tile(k), k["pad"] in STAGED
        func = direct_compute(tiling.problem, workload.epilogue, tile, staged=staged, ob=tiling.channel_blocks(k))
        scheduled = _schedule(tiling, func, k)
        return in_dots(scheduled, data=not self.plain_data) if tiling.problem.words else scheduled


class GpuDirectConvPlain(GpuDirectConv):
    """A template with the knobs of `GpuDirectConv` that reads NCHW input of fewer channels than a vector has lanes."""

    name = "gpu.conv2d_direct_nchw"
    plain_data = True

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        return conv.in_channels < lanes and conv.groups == 1


def _knobs(tiling: Tiling) -> tuple[Knob, ...]:
    problem, limits = tiling.problem, tiling.limits
    conv, blocks = problem.conv, problem.blocks
    unrolled = tuple(u for u in reversed(divisors(problem.depth, 16)) if u >= 4 or u == problem.depth)
    ordered = conv.kernel != (1, 1) and len(unrolled) > 1

    def up_to(extent: int, *values: int) -> tuple[int, ...]:
        return tuple(v for v in values if v <= extent)

    # Joining the bytes of several planes to a word takes too long to be done for every product.
    joins = problem.words and problem.plain_data
    pads = ("local", *(() if joins else ("inline",)), "kernel", *(SHARED if limits.shares_memory else ()))
    on_cpu = limits.family == "cpu"
    # A border of integers is no zero, which is all that an asynchronous copy can fill in.
    asynchronous = limits.copies_asynchronously and blocks.in_blocks > 1 and not problem.integer
    return (
        # On a CPU `ki` need not divide. Three blocks of four pixels fill its 16 registers and need few loads, which is
        # worth computing blocks of zeros.
        Knob("ki", blocks.out_tiles(8) if limits.family == "cpu" else divisors(blocks.out_blocks, 8)),
        Knob("yi", up_to(problem.rows, 1, 2, 4)),
        Knob("xi", up_to(problem.columns, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28)),
        Knob("kt", divisors(blocks.out_blocks, 16)),
        Knob("yt", up_to(problem.rows, 1, 2, 3, 4, 5, 6, 7, 8, 14, 16)),
        Knob("xt", up_to(problem.columns, 1, 2, 3, 4, 5, 6, 7, 8, 14, 16, 28, 32, 64)),
        Knob("vec", searched_widths(limits, blocks.lanes)),
        Knob("pad", (*pads, PATCH) if on_cpu else pads),
        Knob("wshared", (0, 1) if limits.shares_memory else (0,)),
        Knob("ct", tuple(d for d in (1, 2, 4, 8) if blocks.in_blocks % d == 0)),
        Knob("order", tuple(ORDERS) if ordered else ("c.kh.kw.i",)),
        Knob("ui", unrolled),
        Knob("unroll_kw", (0, 1) if conv.kernel[1] > 1 else (0,)),
        Knob("unroll_kh", (0, 1) if conv.kernel[0] > 1 else (0,)),
        Knob("inner", ("pixels", "blocks")),
        # Where they do not apply these knobs are absent, so that configs in databases stay valid.
        *([Knob("asynchronous", (0, 1))] if asynchronous else []),
        *([Knob("turns", divisors(blocks.out_blocks, 32))] if on_cpu and blocks.out_blocks > 1 else []),
    )


def _constraints(tiling: Tiling, knobs: tuple[Knob, ...]) -> tuple[Constraint, ...]:
    problem, limits, blocks = tiling.problem, tiling.limits, tiling.problem.blocks
    kernel = problem.conv.kernel

    def constant_registers(v: Values) -> bool:
        """Tell whether every read of an input row in registers is unrolled: a GPU cannot index its registers."""
        if v["pad"] not in ("local", "shared_local") or limits.family == "cpu":
            return True
        return (kernel[1] == 1 or v["unroll_kw"] == 1) and tiling.row_lanes(v) == v["ui"]

    most = prod(max(knob.values) for knob in knobs if knob.name in ("kt", "yt", "xt"))
    most_sums = prod(max(knob.values) for knob in knobs if knob.name in ("ki", "yi", "xi"))
    fewest = 1 if limits.family == "cpu" or most < 4 * MIN_ITEMS else MIN_ITEMS

    def divides(v: Values) -> bool:
        return blocks.out_blocks % tiling.channel_blocks(v) == 0 or (v["kt"] == 1 and limits.family == "cpu")

    def short_enough(v: Values) -> bool:
        inlined = v["pad"] == "inline" and problem.reads_outside(*tiling.tile(v))
        return tiling.unrolled(v) <= (MAX_CONDITIONS if inlined else limits.max_unrolled)

    def fits_cache(v: Values) -> bool:
        return tiling.patch_bytes(v) <= MAX_PATCH_BYTES

    def copies_more(v: Values) -> bool:
        copied = v["pad"] in SHARED or v["wshared"] == 1
        return not tiling.asynchronous(v) or (copied and blocks.in_blocks >= 2 * v["ct"])

    def copies_words(v: Values) -> bool:
        used = zip((v["pad"] in SHARED, v["wshared"] == 1), tiling.copied_widths(v), strict=True)
        return not tiling.asynchronous(v) or all(width * problem.value_bytes >= 4 for copied, width in used if copied)

    return (
        Constraint("the tile does not divide the channels", divides),
        *limit_constraints(limits, tiling.group, tiling.sums, tiling.local_bytes),
        Constraint("an item's input does not fit into a cache", lambda v: v["pad"] != PATCH or fits_cache(v)),
        Constraint("too many pixels are computed in vain", lambda v: tiling.waste(v) <= MAX_WASTE),
        Constraint("too many unrolled multiply-adds", short_enough),
        Constraint("too few work-items in a group", lambda v: tiling.group(v).size >= fewest),
        cpu_sums_constraint(limits, most_sums, tiling.accumulators),
        Constraint("registers cannot be indexed by a loop", constant_registers),
        Constraint("there is nothing to pad", lambda v: v["pad"] != "kernel" or problem.reads_outside(*tiling.tile(v))),
        Constraint("one order as there is one step", lambda v: v["order"] == "c.kh.kw.i" or v["ui"] < problem.depth),
        Constraint("there are no next blocks to copy asynchronously", copies_more),
        Constraint("asynchronous copies take 4 bytes at least", copies_words),
        Constraint("nothing is copied in blocks", lambda v: v["ct"] == 1 or v["pad"] in SHARED or v["wshared"] == 1),
    )


@dataclass(frozen=True)
class _Style:
    """How a seed config uses a device's memory, and the sizes of groups and tiles that suit this use.

    `pad`, `wshared`, `asynchronous` and `turns` are values of these knobs. `items` is the size of a group, `sums` the
    largest number of vectors of sums of an item. `ki` is the number of channel blocks of its tile, where 0 allows any.
    """

    pad: str
    wshared: int
    items: int
    sums: int
    ki: int = 0
    asynchronous: int = 0
    turns: int = 1


# The styles for each family, in the order in which they are worth trying. On CPUs one item fills the registers, its
# input comes from the stack or from an image that another kernel padded, and groups are small. On Nvidia's GPUs local
# memory feeds many items. On Mali and Intel local memory is no faster than the caches.
_STYLES = {
    "cpu": (
        _Style(PATCH, 0, 1, 14, turns=8),
        _Style("local", 0, 1, 14, ki=2),
        _Style("kernel", 0, 1, 14),
        _Style("local", 0, 8, 14),
        _Style("kernel", 0, 8, 8, ki=2),
        _Style("local", 0, 1, 28),
    ),
    "nvidia": (
        _Style("shared", 1, 128, 16),
        _Style("shared", 1, 256, 8),
        _Style("shared", 1, 128, 16, asynchronous=1),
        _Style("shared_local", 1, 128, 8),
        _Style("shared", 1, 128, 2),  # for small layers, which have few items
        _Style("inline", 0, 128, 16),
        _Style("local", 0, 128, 8),
    ),
    "other": (
        _Style("local", 0, 64, 6),
        _Style("inline", 0, 64, 8),
        _Style("kernel", 0, 128, 8),
        _Style("shared", 0, 64, 8),
    ),
}


def _seeds(tiling: Tiling, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]) -> tuple[Values, ...]:
    """Return for each style the tile of an item with the fewest loads per multiply-add, in groups of about its size."""
    values = {knob.name: knob.values for knob in knobs}
    items, groups = _tiles(values, ("ki", "yi", "xi")), _tiles(values, ("kt", "yt", "xt"))
    seeds: list[Values] = []
    for style in _STYLES.get(tiling.limits.family, _STYLES["other"]):
        if style.pad == "kernel" and not any(tiling.problem.conv.padding):
            continue
        if style.asynchronous not in values.get("asynchronous", (0,)):
            continue
        chosen = {"pad": style.pad, "wshared": style.wshared, "asynchronous": style.asynchronous}
        chosen |= {"turns": max(t for t in values.get("turns", (1,)) if t <= style.turns)}
        chosen |= {"unroll_kw": int(tiling.limits.family != "cpu"), "ui": _seeded_unrolling(tiling, values["ui"])}
        fixed = {name: chosen[name] if chosen.get(name) in known else known[0] for name, known in values.items()}
        ranked = sorted(items, key=lambda t: _item_cost(tiling, style, {**fixed, **t}))
        for item in ranked[:_ITEM_TILES]:
            seeded = sorted(({**fixed, **item, **g} for g in groups), key=lambda v: _group_cost(tiling, style, v))
            best = next((seed for seed in seeded if all(c.holds(seed) for c in constraints)), None)
            if best is not None:
                seeds.append(best)
                break
    return tuple(seeds)


def _seeded_unrolling(tiling: Tiling, ui: Sequence[int]) -> int:
    """Return the value of `ui` for seed configs: the most, but on a CPU not the whole reduction. Without any loop LLVM
    moves all reads of the input before the loop over output blocks, and spills them to the stack."""
    problem = tiling.problem
    is_whole = problem.conv.kernel == (1, 1) and problem.blocks.in_blocks == 1
    return next((u for u in ui if u < problem.depth), ui[0]) if is_whole and tiling.limits.family == "cpu" else ui[0]


def _tiles(values: Mapping[str, tuple[Any, ...]], names: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(zip(names, t, strict=True)) for t in itertools.product(*(values[name] for name in names))]


def _item_cost(tiling: Tiling, style: _Style, v: Values) -> float:
    """Return the loads per useful multiply-add, or infinity for a tile with more sums than the style allows."""
    if tiling.accumulators(v) > style.sums:
        return math.inf
    unwanted = 2.0 if style.ki not in (0, v["ki"]) else 1.0
    return (v["ki"] + v["yi"] * v["xi"]) / tiling.accumulators(v) * tiling.waste(v) * unwanted


def _group_cost(tiling: Tiling, style: _Style, v: Values) -> float:
    """Return how far a group is from the style's size, in powers of two, plus a penalty for wasted work."""
    return abs(math.log2(tiling.group(v).size / style.items)) + 4 * math.log2(tiling.waste(v))


def _features(tiling: Tiling, v: Values) -> Mapping[str, float]:
    """Compute features of the loops: items and groups, occupancy, work per load, registers, local memory."""
    pixels = v["yi"] * v["xi"]
    kh, kw = tiling.problem.conv.kernel
    reach_y, reach_x = tiling.problem.reach(*tiling.tile(v))
    th, tw = tiling.tile(v)
    macs = tiling.channel_blocks(v) * tiling.problem.blocks.lanes * th * tw * kh * kw  # per group and input channel
    loads = reach_y * reach_x + tiling.channel_blocks(v) * tiling.problem.blocks.lanes * kh * kw
    return {
        **launch_features(tiling.limits, tiling.group(v), tiling.groups(v), tiling.local_bytes(v)),
        "flop_per_byte": 2.0 * macs / (tiling.problem.value_bytes * loads),
        "accumulators": float(tiling.accumulators(v)),
        "sums": float(tiling.sums(v)),
        "loads_per_fma": (v["ki"] + pixels) / tiling.accumulators(v),
        "body_fmas": float(tiling.unrolled(v)),
        "waste": tiling.waste(v),
    }


def _schedule(tiling: Tiling, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the loops as: groups | items | input blocks | reduction | register tile.

    Copies into local memory are made inside the loop over input blocks, and an input row is copied into registers
    inside the reduction.
    """
    sch = new_schedule(func)
    conv, group = sch.get_sblock("conv"), tiling.group(k)
    n, o, y, x, v, ic, kh, kw, ii = sch.get_loops(conv)
    ob, os, ot, oi = sch.split(o, [None, turns(k), k["kt"], k["ki"]])
    yb, yt, yi = sch.split(y, [None, k["yt"], k["yi"]])
    xb, xt, xi = sch.split(x, [None, k["xt"], k["xi"]])
    vt, vi = sch.split(v, [None, k["vec"]])
    co, ci = sch.split(ic, [None, k["ct"]])
    io, iu = sch.split(ii, [None, k["ui"]])
    loops = {"ic": ci, "kh": kh, "kw": kw, "io": io, "iu": iu}
    reduction = [loops[name] for name in ORDERS[k["order"]]]
    tile = [yi, xi, oi, vi] if k["inner"] == "pixels" else [oi, yi, xi, vi]
    sch.reorder(n, ob, yb, xb, ot, yt, xt, vt, os, co, *reduction, *tile)
    bound = launch(
        sch,
        {
            "blockIdx.y": [n, ob],
            "blockIdx.x": [yb, xb],
            "threadIdx.z": [ot],
            "threadIdx.y": [yt],
            "threadIdx.x": [xt, vt],
        },
    )
    write_back(sch, conv, os if turns(k) > 1 else bound["threadIdx.x"])
    row = io if k["order"] == "c.kh.i.kw" else kh
    _schedule_data(tiling, sch, k, chunk=co, row=bound["threadIdx.x"] if k["pad"] == PATCH else row)
    if k["wshared"]:
        # Of moved integers the stage that writes reads the weight, too.
        weights = sch.cache_read(conv, 1, "shared", consumer_blocks=[conv])
        cooperate(sch, weights, co, group=group, vector=tiling.copied_widths(k)[1])
    unroll_tile(sch, [iu, *([kw] if k["unroll_kw"] else []), *([kh] if k["unroll_kh"] else []), *tile])
    split_init(sch, conv, co)
    if tiling.asynchronous(k):
        overlap_copies(sch, co, (k["pad"] in SHARED) + k["wshared"])
    return sch.mod["main"]


def _schedule_data(tiling: Tiling, sch: Schedule, k: Values, *, chunk: Any, row: Any) -> None:
    """Compute the padded input where the config says.

    `chunk` is the loop at which it is copied into local memory, `row` that at which it is copied into registers or an
    item's own memory.
    """
    if not has_block(sch, "pad"):
        return
    pad = sch.get_sblock("pad")
    if k["pad"] == "inline":
        sch.compute_inline(pad)
    elif k["pad"] == "kernel":
        own_kernel(sch, pad, PAD_GROUP, tiling.data_widths()[0])
    elif k["pad"] == PATCH:
        into_own_memory(sch, pad, row, tiling.data_widths()[0])
    elif k["pad"] == "local":
        into_registers(sch, pad, row, tiling.row_width(k))
    else:
        cooperate(sch, pad, chunk, group=tiling.group(k), vector=tiling.copied_widths(k)[0])
        if k["pad"] == "shared_local":
            copy = sch.cache_read(sch.get_sblock("conv"), 0, "local")
            into_registers(sch, copy, row, tiling.row_width(k))
