"""The template that computes depthwise convolutions on OpenCL and CUDA devices. Start at `GpuDepthwise`.

`templates.depthwise` has the expressions. A work-item holds the sums of `yi` x `xi` pixels of `vec` channels. A group
computes `ct` channel blocks by `yt` x `xt` such tiles, with one item for each vector of a channel block. As there is
little to reuse, the input may be read straight from global memory. Otherwise an item first copies a kernel row, or all
that its tile reads, into registers, or a group copies what it reads into local memory. Integers become float32 where
they are copied, and their sums are exact in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import divisors
from templates.depthwise import depthwise_compute, pack_depthwise, reach, reads_outside, sums_are_exact
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import (
    Group,
    cooperate,
    into_registers,
    launch,
    launch_features,
    limit_constraints,
    own_kernel,
    searched_widths,
    split_init,
    write_back,
)
from templates.integers import INTEGERS
from templates.space import Constraint, Knob, Space, Values
from templates.stages import has_block, new_schedule, unroll_tile
from templates.template import AnchorTemplate, Layout, Layouts
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

REGISTERS = ("row", "patch")  # values of `pad` with the input in an item's own registers
STAGED = (*REGISTERS, "shared")  # values of `pad` that copy the input even if nothing is padded
PAD_GROUP = 64
# The largest ratio of computed pixels to needed ones. Configs that exceed it are never fast.
MAX_WASTE = 1.34
# The fewest work-items of a group. With fewer most lanes of a GPU's SIMD unit are idle.
MIN_ITEMS = 16


@dataclass(frozen=True)
class _Tiling:
    """A convolution on a device, with methods that derive groups, registers and memory from knob values."""

    conv: Conv2d
    limits: GpuLimits
    dtype: str  # of operands, weights and results; sums are float32

    @property
    def blocks(self) -> int:
        return -(-self.conv.in_channels // self.limits.lanes)

    def group(self, v: Values) -> Group:
        return Group(v["ct"], v["yt"], v["xt"] * (self.limits.lanes // v["vec"]))

    def tile(self, v: Values) -> tuple[int, int]:
        """Return how many rows and columns a group computes."""
        return v["yt"] * v["yi"], v["xt"] * v["xi"]

    def covered(self, v: Values) -> tuple[int, int]:
        """Return how many rows and columns whole groups cover."""
        th, tw = self.tile(v)
        return -(-self.conv.out_height // th) * th, -(-self.conv.out_width // tw) * tw

    def waste(self, v: Values) -> float:
        tall, wide = self.covered(v)
        return tall * wide / (self.conv.out_height * self.conv.out_width)

    def groups(self, v: Values) -> int:
        (th, tw), (tall, wide) = self.tile(v), self.covered(v)
        return self.conv.batch * (self.blocks // v["ct"]) * (tall // th) * (wide // tw)

    def copied(self, v: Values) -> int:
        """Return how many input values per channel an item keeps in registers beside its sums."""
        high, wide = reach(self.conv, v["yi"], v["xi"])
        if v["pad"] == "row":
            high -= (self.conv.kernel[0] - 1) * self.conv.dilation[0]
        return high * wide if v["pad"] in REGISTERS else 0

    def sums(self, v: Values) -> int:
        """Return how many values an item keeps in registers. A CPU reads the input from its stack instead."""
        copied = 0 if self.limits.family == "cpu" else self.copied(v)
        return (v["yi"] * v["xi"] + copied) * v["vec"]

    def fetched_early(self, v: Values) -> int:
        """Return how many weights, and values of an input row, Nvidia's compiler loads into registers early."""
        if self.limits.family != "nvidia":
            return 0
        kh, kw = self.conv.kernel
        return (kh * kw + reach(self.conv, 1, v["xi"])[1]) * v["vec"]

    def unrolled(self, v: Values) -> int:
        """Return the number of vector multiply-adds in the longest unrolled body."""
        kh, kw = self.conv.kernel
        return v["yi"] * v["xi"] * kw * (kh if v["unroll_kh"] else 1)

    def local_bytes(self, v: Values) -> int:
        high, wide = reach(self.conv, *self.tile(v))
        held = "float32" if self.dtype == INTEGERS else self.dtype  # integers are converted where they are padded
        return np.dtype(held).itemsize * v["ct"] * high * wide * self.limits.lanes if v["pad"] == "shared" else 0


class GpuDepthwise(AnchorTemplate):
    """A template whose work-items compute `yi` rows by `xi` columns each.

    A group has `ct` x `yt` x `xt` such tiles, where `ct` counts channel blocks. The other knobs: `vec` is the number of
    lanes of a vector. `pad` says where the padded input is kept: nowhere ("inline"), a kernel row in registers ("row"),
    all that a tile reads in registers ("patch"), in local memory ("shared"), or in memory that a kernel of its own
    fills ("kernel"). `unroll_kh` unrolls the kernel rows.
    """

    name = "gpu.depthwise"
    op = "conv2d"
    dtypes = ("float32", "float16", INTEGERS)

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(gpu_limits_of(target).lanes)
        return Layouts(block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        conv = conv_of(workload)
        if limits is None or not limits.stores(workload.dtype) or not conv.is_depthwise:
            return None
        if workload.dtype == INTEGERS and not sums_are_exact(conv):
            return None
        tiling = _Tiling(conv, limits, workload.dtype)
        knobs = _knobs(tiling)
        return Space(self.name, knobs, _constraints(tiling), _seeds(tiling, knobs), lambda v: _features(tiling, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return "blocked"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        real = weight.astype(np.float32) if workload.dtype == INTEGERS else weight
        return pack_depthwise(real, gpu_limits_of(target).lanes)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        tiling, k = _Tiling(conv_of(workload), gpu_limits_of(target), workload.dtype), config.knobs
        lanes, staged = tiling.limits.lanes, k["pad"] in STAGED
        func = depthwise_compute(workload, lanes, tiling.tile(k), staged=staged)
        return _schedule(tiling, func, k)


def _knobs(tiling: _Tiling) -> tuple[Knob, ...]:
    conv, limits = tiling.conv, tiling.limits

    def up_to(extent: int, *values: int) -> tuple[int, ...]:
        return tuple(v for v in values if v <= extent)

    return (
        Knob("yi", up_to(conv.out_height, 1, 2, 4, 7)),
        Knob("xi", up_to(conv.out_width, 1, 2, 3, 4, 5, 6, 7, 8, 14)),
        Knob("ct", divisors(tiling.blocks, 16)),
        Knob("yt", up_to(conv.out_height, 1, 2, 4, 7, 8, 14, 16)),
        Knob("xt", up_to(conv.out_width, 1, 2, 4, 7, 8, 14, 16, 28, 32)),
        Knob("vec", searched_widths(limits, limits.lanes)),
        Knob("pad", ("inline", "row", "patch", "kernel", *(("shared",) if limits.shares_memory else ()))),
        Knob("unroll_kh", (1, 0)),
    )


def _constraints(tiling: _Tiling) -> tuple[Constraint, ...]:
    limits = tiling.limits

    def enough_items(v: Values) -> bool:
        whole = tiling.groups(v) == tiling.conv.batch  # one group computes an image alone
        return limits.family == "cpu" or whole or tiling.group(v).size >= MIN_ITEMS

    return (
        *limit_constraints(limits, tiling.group, tiling.sums, tiling.local_bytes),
        Constraint("too many pixels are computed in vain", lambda v: tiling.waste(v) <= MAX_WASTE),
        Constraint("too many unrolled multiply-adds", lambda v: tiling.unrolled(v) <= tiling.limits.max_unrolled),
        Constraint("too few work-items in a group", enough_items),
        Constraint("registers cannot be indexed by a loop", lambda v: v["pad"] != "patch" or v["unroll_kh"] == 1),
        Constraint(
            "there is nothing to pad",
            lambda v: v["pad"] != "kernel" or reads_outside(tiling.conv, *tiling.covered(v)),
        ),
    )


# Styles of seed configs for each family, (`pad`, items of a group), in the order in which they are worth trying.
_STYLES = {
    "cpu": (("row", 1), ("patch", 4), ("kernel", 1), ("inline", 1)),
    "nvidia": (("inline", 128), ("patch", 128), ("shared", 128), ("kernel", 256)),
}
_OTHER_STYLES = (("patch", 64), ("inline", 64), ("row", 64), ("kernel", 128))


def _seeds(tiling: _Tiling, knobs: tuple[Knob, ...]) -> tuple[Values, ...]:
    """Return for each style the tile of an item that fits into its registers and needs the fewest loads per sum.

    Long vectors are preferred; on a CPU none is shorter than its registers, and tiles that do not divide the image are
    taken to be half as fast, as every result is stored under a condition. There, too, an item that copies row by row
    computes one row, in a loop over the kernel's rows. Groups have about the style's size and compute as little as
    possible in vain.
    """
    values = {knob.name: knob.values for knob in knobs}
    on_cpu = tiling.limits.family == "cpu"
    if on_cpu:
        values["vec"] = (max(values["vec"]),)

    def cost(v: Values) -> float:
        cut = 2 if on_cpu and tiling.waste(v) > 1 else 1
        return _loads(tiling, v) * (1 + 1 / v["vec"]) * tiling.waste(v) * cut

    def fits(v: Values, fetched: int) -> bool:
        return tiling.sums(v) + fetched <= most and tiling.unrolled(v) <= tiling.limits.max_unrolled

    constraints = _constraints(tiling)
    most = tiling.limits.sums // (2 if on_cpu else 1)
    seeds: list[Values] = []
    for pad, items in _STYLES.get(tiling.limits.family, _OTHER_STYLES):
        if pad not in values["pad"]:
            continue
        names = ("vec", "yi", "xi")
        one_row = on_cpu and pad == "row"
        fixed = {"ct": 1, "yt": 1, "xt": 1, "pad": pad, "unroll_kh": int(not one_row)}
        tiles = [{**fixed, **dict(zip(names, t, strict=True))} for t in itertools.product(*(values[n] for n in names))]
        if one_row:
            tiles = [t for t in tiles if t["yi"] == 1]
        fitting = [t for t in tiles if fits(t, tiling.fetched_early(t))]
        if not fitting and pad != "patch":  # of a large kernel, whose rows are a loop then: its weights come late
            fitting = [t for t in ({**t, "unroll_kh": 0} for t in tiles) if fits(t, 0)]
        for tile in sorted(fitting, key=cost):
            shapes = itertools.product(values["ct"], values["yt"], values["xt"])
            groups = [{**tile, "ct": ct, "yt": yt, "xt": xt} for ct, yt, xt in shapes]
            valid = [g for g in groups if all(c.holds(g) for c in constraints)]
            if valid:
                seeds.append(min(valid, key=lambda g: _distance(tiling, items, g)))
                break
    return tuple(seeds)


def _loads(tiling: _Tiling, v: Values) -> float:
    """Return how many input values are read per sum if an item reads each of them once."""
    high, wide = reach(tiling.conv, v["yi"], v["xi"])
    return high * wide / (v["yi"] * v["xi"])


def _distance(tiling: _Tiling, items: int, v: Values) -> float:
    return abs(math.log2(tiling.group(v).size / items)) + 4 * math.log2(tiling.waste(v))


def _features(tiling: _Tiling, v: Values) -> Mapping[str, float]:
    return {
        **launch_features(tiling.limits, tiling.group(v), tiling.groups(v), tiling.local_bytes(v)),
        "accumulators": float(v["yi"] * v["xi"]),
        "sums": float(tiling.sums(v)),
        "loads_per_sum": _loads(tiling, v),
        "body_fmas": float(tiling.unrolled(v)),
        "waste": tiling.waste(v),
    }


def _schedule(tiling: _Tiling, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the loops as: groups | items | kernel rows | register tile."""
    sch = new_schedule(func)
    conv = sch.get_sblock("conv")
    n, c, y, x, v, kh, kw = sch.get_loops(conv)
    cb, ct = sch.split(c, [None, k["ct"]])
    yb, yt, yi = sch.split(y, [None, k["yt"], k["yi"]])
    xb, xt, xi = sch.split(x, [None, k["xt"], k["xi"]])
    vt, vi = sch.split(v, [None, k["vec"]])
    sch.reorder(n, cb, yb, xb, ct, yt, xt, vt, kh, kw, yi, xi, vi)
    bound = launch(
        sch,
        {
            "blockIdx.y": [n, cb],
            "blockIdx.x": [yb, xb],
            "threadIdx.z": [ct],
            "threadIdx.y": [yt],
            "threadIdx.x": [xt, vt],
        },
    )
    item = bound["threadIdx.x"]
    write_back(sch, conv, item)
    _schedule_data(tiling, sch, k, item=item, row=kh)
    unroll_tile(sch, [*([kh] if k["unroll_kh"] else []), kw, yi, xi, vi])
    split_init(sch, conv, kh)
    return sch.mod["main"]


def _schedule_data(tiling: _Tiling, sch: Schedule, k: Values, *, item: Any, row: Any) -> None:
    """Compute the padded input where the config says."""
    if not has_block(sch, "pad"):
        return
    pad = sch.get_sblock("pad")
    if k["pad"] == "inline":
        sch.compute_inline(pad)
    elif k["pad"] == "kernel":
        own_kernel(sch, pad, min(PAD_GROUP, tiling.limits.max_threads), k["vec"])
    elif k["pad"] == "shared":
        cooperate(sch, pad, item, group=tiling.group(k), vector=k["vec"])
    else:
        into_registers(sch, pad, row if k["pad"] == "row" else item, k["vec"])
