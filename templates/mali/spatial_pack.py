"""The template that computes direct convolutions on plain NCHW data, for Mali and other GPUs without fast local memory.

Data and output are NCHW, so that no layout is converted. Weights are packed as (K/v, C/groups, R, S, 1, v). A work-item
holds the sums of `ki` blocks of v output channels by `yi` x `xi` pixels, in vectors along the channels of a block or
along the columns. Mali's local memory is ordinary memory: the input is read through registers or straight from the
caches. With vectors along the columns, groups need not have a whole vector of channels, which suits grouped and
depthwise convolutions.

Source: the spatial-pack schedules of Zheng and Chen, "Optimizing Mobile Deep Learning on ARM GPU with TVM", 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import log2
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import Blocking, divisors
from templates.direct import DirectProblem, direct_compute
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import (
    Group,
    into_registers,
    launch,
    limit_constraints,
    own_kernel,
    own_loops,
    split_init,
    vector_widths,
)
from templates.space import Constraint, Knob, Space, Values
from templates.stages import has_block, new_schedule, unroll_tile
from templates.template import PLAIN, AnchorTemplate, Layouts
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

# Nvidia's and Intel's GPUs have templates of their own that are always faster.
FAMILIES = ("mali", "adreno", "cpu", "other")
PAD_GROUP = 64
# The largest ratio of computed pixels to needed ones. Configs that exceed it are never fast.
MAX_WASTE = 1.34
# The work-items of a group in seed configs. This many keep a Mali core's threads in step.
SEED_GROUP = 32


@dataclass(frozen=True)
class _Tiling:
    """A convolution on a device, with methods that derive groups, registers and work from knob values."""

    conv: Conv2d
    limits: GpuLimits
    dtype: str

    def problem(self, v: Values) -> DirectProblem:
        c = self.conv
        per_group = c.out_channels // c.groups // v["vec"]
        blocks = Blocking(c.groups, c.in_channels // c.groups, per_group, 1, v["vec"])
        return DirectProblem(c, blocks, plain_data=True, plain_out=True, dtype=self.dtype)

    @property
    def pixels(self) -> tuple[int, int]:
        """Return the numbers of rows and columns that are cut into tiles."""
        problem = self.problem({"vec": 1})
        return problem.rows, problem.columns

    def group(self, v: Values) -> Group:
        return Group(v["kt"], v["yt"], v["xt"])

    def tile(self, v: Values) -> tuple[int, int]:
        """Return how many rows and columns a group computes."""
        return v["yt"] * v["yi"], v["xt"] * v["xi"]

    def waste(self, v: Values) -> float:
        problem, (th, tw) = self.problem(v), self.tile(v)
        return problem.tall(th) * problem.wide(tw) / (problem.rows * problem.columns)

    def row(self, v: Values) -> int:
        """Return how many input values an item keeps in registers: those under one kernel row of its tile."""
        if v["pad"] != "local":
            return 0
        return ((v["yi"] - 1) * self.conv.strides[0] + 1) * self.problem(v).reach(1, v["xi"])[1] * v["ui"]

    def accumulators(self, v: Values) -> int:
        return v["ki"] * v["vec"] * v["yi"] * v["xi"]

    def sums(self, v: Values) -> int:
        return self.accumulators(v) + self.row(v)

    def unrolled(self, v: Values) -> int:
        """Return the number of vector multiply-adds in the longest unrolled body."""
        kh, kw = self.conv.kernel
        taps = (kw if v["unroll"] >= 1 else 1) * (kh if v["unroll"] >= 2 else 1)
        return self.accumulators(v) // _lanes(v) * v["ui"] * taps


def _lanes(v: Values) -> int:
    """Return how many lanes the vectors have that sums are kept in."""
    return v["vec"] if v["vector"] == "channels" else v["columns"]


class SpatialPack(AnchorTemplate):
    """A template whose work-items compute `ki` blocks by `yi` rows by `xi` columns each.

    A group has `kt` x `yt` x `xt` items. The other knobs: `vector` says along which axis vectors lie ("channels" or
    "columns"). `vec` is the number of output channels of a weight block, `columns` the lanes of a vector along the
    columns. `ui` input channels are unrolled. `unroll` unrolls the kernel columns (1), or the kernel rows too (2).
    `pad` says where the padded input is kept: in registers ("local"), in memory that a kernel of its own fills
    ("kernel"), or nowhere ("inline").
    """

    name = "mali.conv2d_spatial_pack"
    op = "conv2d"
    dtypes = ("float32", "float16")

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or limits.family not in FAMILIES or not limits.stores(workload.dtype):
            return None
        tiling = _Tiling(conv_of(workload), limits, workload.dtype)
        knobs, constraints = _knobs(tiling), _constraints(tiling)
        return Space(self.name, knobs, constraints, _seeds(tiling, knobs, constraints), partial(_features, tiling))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return f"vec{config['vec']}"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        k, c, r, s = weight.shape
        blocks = weight.reshape(k // config["vec"], config["vec"], c, r, s, 1)
        return np.ascontiguousarray(blocks.transpose(0, 2, 3, 4, 5, 1))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        tiling, k = _Tiling(conv_of(workload), gpu_limits_of(target), workload.dtype), config.knobs
        staged = k["pad"] == "local"
        return _schedule(k, direct_compute(tiling.problem(k), workload.epilogue, tiling.tile(k), staged=staged))


def _knobs(tiling: _Tiling) -> tuple[Knob, ...]:
    conv, (rows, columns) = tiling.conv, tiling.pixels
    per_group = conv.out_channels // conv.groups
    widths = tuple(w for w in vector_widths(tiling.limits, per_group) if w <= tiling.limits.lanes)
    across = tuple(w for w in vector_widths(tiling.limits, columns) if 1 < w <= tiling.limits.lanes)

    def up_to(extent: int, *values: int) -> tuple[int, ...]:
        return tuple(v for v in values if v <= extent)

    reads_outside = any(conv.padding)
    return (
        Knob("vector", ("channels", "columns") if across else ("channels",)),
        Knob("vec", widths),
        Knob("columns", (1, *across)),
        Knob("ki", divisors(per_group, 8)),
        Knob("yi", up_to(rows, 1, 2, 4)),
        Knob("xi", up_to(columns, 1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 28)),
        Knob("kt", divisors(conv.out_channels, 16)),
        Knob("yt", up_to(rows, 1, 2, 4, 8)),
        Knob("xt", up_to(columns, 1, 2, 4, 7, 8, 14, 16, 32)),
        Knob("ui", divisors(conv.in_channels // conv.groups, 8)),
        Knob("unroll", (0, 1, 2) if conv.kernel != (1, 1) else (0,)),
        Knob("pad", ("local", "inline", "kernel") if reads_outside else ("local", "inline")),
    )


def _constraints(tiling: _Tiling) -> tuple[Constraint, ...]:
    conv, cpu = tiling.conv, tiling.limits.family == "cpu"
    per_group = conv.out_channels // conv.groups

    def vectors(v: Values) -> bool:
        return v["columns"] == 1 if v["vector"] == "channels" else v["columns"] > 1 and v["xi"] % v["columns"] == 0

    def divides(v: Values) -> bool:
        tile = v["vec"] * v["ki"]
        return per_group % tile == 0 and conv.out_channels % (tile * v["kt"]) == 0

    def one_group(v: Values) -> bool:
        """Tell whether TVM can prove that all channels of an item read the same input."""
        return conv.groups == 1 or v["ki"] == 1 or per_group % (v["vec"] * v["ki"] * v["kt"]) == 0

    def constant_registers(v: Values) -> bool:
        return cpu or v["pad"] != "local" or conv.kernel[1] == 1 or v["unroll"] > 0

    def padded_whole(v: Values) -> bool:
        return (v["vector"], v["pad"]) != ("columns", "inline") or not tiling.problem(v).reads_outside(*tiling.tile(v))

    return (
        Constraint("columns are vectors that divide the tile, or single", vectors),
        Constraint("the tile does not divide the channels", divides),
        *limit_constraints(tiling.limits, tiling.group, tiling.sums),
        Constraint("too many pixels are computed in vain", lambda v: tiling.waste(v) <= MAX_WASTE),
        Constraint("too many unrolled multiply-adds", lambda v: tiling.unrolled(v) <= tiling.limits.max_unrolled),
        Constraint("registers cannot be indexed by a loop", constant_registers),
        Constraint("a row in registers is of one group", lambda v: v["pad"] != "local" or one_group(v)),
        Constraint("a vector of columns is padded as a whole", padded_whole),
    )


def _seeds(tiling: _Tiling, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]) -> tuple[Values, ...]:
    """Return the tile with the fewest loads per multiply-add for each value of `pad` and of `vector`.

    Groups are sized to keep threads in step.
    """
    values = {knob.name: knob.values for knob in knobs}
    group = 1 if tiling.limits.family == "cpu" else SEED_GROUP

    def cost(v: Values) -> float:
        features = _features(tiling, v)
        shape = abs(log2(features["group_items"] / group)) + 0.1 * log2(v["kt"])  # prefer columns to channels
        return features["loads_per_fma"] * features["waste"] + 0.1 * shape

    seeds: list[Values] = []
    several = next(u for u in (4, 3, 2, 1) if u in values["ui"])
    for pad, vector in product(values["pad"], values["vector"]):
        columns = values["columns"][1] if vector == "columns" else 1
        ui = 1 if pad == "inline" else several
        unroll = max(u for u in values["unroll"] if u < 2)
        fixed = {"vector": vector, "columns": columns, "ui": ui, "unroll": unroll, "pad": pad}
        tile: dict[str, Any] = {"kt": 1, "yt": 1, "xt": 1}
        for names in (("vec", "ki", "yi", "xi"), ("kt", "yt", "xt")):
            tries = [
                {**fixed, **tile, **dict(zip(names, t, strict=True))} for t in product(*(values[n] for n in names))
            ]
            tries = [t for t in tries if all(c.holds(t) for c in constraints)]
            if not tries:
                break
            tile = min(tries, key=cost)
        else:
            seeds.append(tile)
    return tuple(seeds)


def _features(tiling: _Tiling, v: Values) -> Mapping[str, float]:
    """Compute features of the loops: registers, loads per multiply-add, size of the body, items and groups."""
    problem, (th, tw) = tiling.problem(v), tiling.tile(v)
    items = tiling.group(v).size
    tiles = problem.tall(th) // th * (problem.wide(tw) // tw)
    groups = tiling.conv.batch * tiles * problem.blocks.all_out_blocks // (v["ki"] * v["kt"])
    weights = v["ki"] * (1 if v["vector"] == "channels" else v["vec"])
    pixels = v["yi"] * v["xi"] // v["columns"]
    return {
        "accumulators": float(tiling.accumulators(v)),
        "sums": float(tiling.sums(v)),
        "body_fmas": float(tiling.unrolled(v)),
        "loads_per_fma": (weights + pixels) / tiling.accumulators(v),
        "lanes": float(_lanes(v)),
        "group_items": float(items),
        "items": float(items * groups),
        "groups": float(groups),
        "waste": tiling.waste(v),
    }


def _schedule(k: Values, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Schedule the loops as: groups | items | input channels | kernel rows | kernel columns | register tile.

    If `pad` is "local", an input row is copied into registers inside the loop over kernel rows.
    """
    sch = new_schedule(func)
    conv = sch.get_sblock("conv")
    n, o, y, x, lane, ic, kh, kw, _ = sch.get_loops(conv)
    ob, ot, oi = sch.split(o, [None, k["kt"], k["ki"]])
    yb, yt, yi = sch.split(y, [None, k["yt"], k["yi"]])
    xb, xt, xi, xv = sch.split(x, [None, k["xt"], k["xi"] // k["columns"], k["columns"]])
    co, ci = sch.split(ic, [None, k["ui"]])
    sch.reorder(n, ob, yb, xb, ot, yt, xt, co, kh, kw, ci, oi, yi, xi, *_vector_last(k, lane, xv))
    blocks = {"blockIdx.y": [n, ob], "blockIdx.x": [yb, xb]}
    bound = launch(sch, {**blocks, "threadIdx.z": [ot], "threadIdx.y": [yt], "threadIdx.x": [xt]})
    write = sch.cache_write(conv, 0, "local")
    if k["vector"] == "columns":  # sums of one vector must be neighbours in the array of registers
        sch.transform_layout(conv, ("write", 0), lambda n, o, y, x, lane: (n, o, y, lane, x))
    sch.reverse_compute_at(write, bound["threadIdx.x"], preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    _schedule_pad(sch, k, kh)
    for loop in (ci, *([kw] if k["unroll"] >= 1 else []), *([kh] if k["unroll"] >= 2 else [])):
        sch.unroll(loop)
    unroll_tile(sch, [oi, yi, xi, *_vector_last(k, lane, xv)])
    _schedule_write(sch, k, write)
    split_init(sch, conv, co)
    return sch.mod["main"]


def _vector_last(k: Values, lane: Any, column: Any) -> tuple[Any, Any]:
    return (column, lane) if k["vector"] == "channels" else (lane, column)


def _schedule_write(sch: Schedule, k: Values, write: Any) -> None:
    """Write the sums in the vectors that they are kept in. A single scalar access would put all of them into memory."""
    n, o, y, x, lane = own_loops(sch, write)
    xi, xv = sch.split(x, [None, k["columns"]])
    inner = _vector_last(k, lane, xv)
    sch.reorder(xi, *inner)
    unroll_tile(sch, [n, o, y, xi, *inner])


def _schedule_pad(sch: Schedule, k: Values, row: Any) -> None:
    """Compute the padded input where the config says. `row` is the loop at which a row is copied into registers."""
    if not has_block(sch, "pad"):
        return
    pad = sch.get_sblock("pad")
    if k["pad"] == "local":
        into_registers(sch, pad, row, 1)
    elif k["pad"] == "kernel":
        own_kernel(sch, pad, PAD_GROUP, 1)
    else:
        sch.compute_inline(pad)
