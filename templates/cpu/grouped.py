"""The template that computes convolutions in small groups of channels on a CPU. Start at `GroupedConv`.

A vector holds the channels of several groups. Every lane of a sum reads the channels of its own group, one after the
other: they are lanes of one vector of the data, which are moved there by a shuffle. So nothing is multiplied by zeros,
as in a block of merged groups. Data is (N, C/v, H, W, v), weights are (C/v, R, S, channels of a group, v), and the
output is (N, C/v, OH, OW, v).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from templates.blocking import divisors, tile_sizes
from templates.cpu.depthwise import chunk_rows, row_chunks, schedule_pad
from templates.cpu.halves import MOST_TERMS
from templates.cpu.isa import HALF, computes_in, threads_of, vector_unit
from templates.cpu.stages import even_first, spread
from templates.depthwise import padded_image, reads_outside
from templates.integers import INTEGERS
from templates.space import Constraint, Knob, Space, Values
from templates.stages import epilogue_operands, epilogue_value, new_schedule, unroll_tile
from templates.template import AnchorTemplate, Layout, Layouts
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

_MAX_UNROLLED = 450
_FEW_REGISTERS = 16
_WIDEST = 8  # tiles of first configs: wider ones keep too many shuffled vectors


class GroupedConv(AnchorTemplate):
    """A template whose register tile has `tw` pixels of a row.

    Its other knobs: `rows` is the number of output rows in a parallel chunk (0: all rows of a channel block). `pad`
    says where the input is padded: in a copy per "chunk", in a copy of all at the "root", or not at all ("none").
    `unroll_kw` unrolls the kernel's columns, so that a shuffled vector serves several of them.
    """

    name = "cpu.conv2d_by_group"  # before cpu.conv2d_direct, which computes the same workloads in merged groups
    op = "conv2d"
    dtypes: tuple[str, ...] = ("float32", HALF)
    sums_halves = True

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(vector_unit(target, workload.dtype).lanes)
        return Layouts(block, block)

    def _converts(self, target: Target) -> bool:
        """Tell whether the data are converted where they are padded."""
        del target
        return False

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not computes_in(target, workload.dtype):
            return None
        conv, unit = conv_of(workload), vector_unit(target, workload.dtype)
        group, lanes = conv.in_channels // conv.groups, unit.lanes
        if not _applies(conv, lanes) or (workload.dtype == HALF and prod((group, *conv.kernel)) > MOST_TERMS):
            return None
        limit = unit.registers - (unit.operands or 2)
        pads = ("chunk", "root") if any(conv.padding) or self._converts(target) else ("none",)
        knobs = (
            Knob("tw", tile_sizes(conv.out_width, limit)),
            Knob("rows", (0, *chunk_rows(conv))),
            Knob("pad", pads),
            Knob("unroll_kw", (1, 0)),
        )

        def unrolled(v: Values) -> int:
            return v["tw"] * group * (conv.kernel[1] if v["unroll_kw"] else 1)

        constraints = (
            Constraint("too many unrolled multiply-adds", lambda v: unrolled(v) <= _MAX_UNROLLED),
            # A tile that sticks out reads beyond the image: only the padded copies are wide enough.
            Constraint(
                "an image without padding needs dividing tiles",
                lambda v: v["pad"] != "none" or conv.out_width % v["tw"] == 0,
            ),
        )
        # Halves of larger groups are moved by tables, and so are integers: registers have to hold them.
        few = workload.dtype == INTEGERS and unit.registers <= _FEW_REGISTERS
        unrolls = (0, 1) if few or (workload.dtype == HALF and group > 2) else (1, 0)
        widest = _WIDEST // 2 if few else _WIDEST
        seeds = _seeds(conv, lanes, threads=threads_of(target), pad=pads[0], unrolls=unrolls, widest=widest)
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(conv, group, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return "by group"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        lanes, (k, group, r, s) = vector_unit(target, workload.dtype).lanes, weight.shape
        blocks = -(-k // lanes)
        padded = np.pad(weight, ((0, blocks * lanes - k), (0, 0), (0, 0), (0, 0)))
        return np.ascontiguousarray(padded.reshape(blocks, lanes, group, r, s).transpose(0, 3, 4, 2, 1))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        lanes, conv = vector_unit(target, workload.dtype).lanes, conv_of(workload)
        product = group_product(conv.in_channels // conv.groups, lanes, workload.dtype)
        return schedule_groups(_compute(workload, lanes, config["tw"]), conv, config.knobs, product)

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        conv = conv_of(workload)
        more = [{"rows": rows} for rows in sorted(chunk_rows(conv), reverse=True)]
        return spread(config, more, row_chunks(conv, vector_unit(target, workload.dtype).lanes), threads_of(target))


def _applies(conv: Conv2d, lanes: int) -> bool:
    group = conv.in_channels // conv.groups
    return conv.groups > 1 and conv.in_channels == conv.out_channels and 1 < group < lanes and lanes % group == 0


def _seeds(
    conv: Conv2d, lanes: int, *, threads: int, pad: str, unrolls: tuple[int, ...], widest: int
) -> tuple[Values, ...]:
    """Return tiles that are wide, of `widest` pixels at most, and divide the width, with chunks of all rows and of
    fewer, and these values of the knob `unroll_kw`. Chunks that keep the threads evenly busy come first."""
    seeds: list[Values] = []
    exact = divisors(conv.out_width, widest)
    near = tile_sizes(conv.out_width, widest)
    for tw in dict.fromkeys((near[-1] if pad != "none" else exact[-1], exact[-1])):
        for rows in (0, max(divisors(conv.out_height, 14))):
            for unroll_kw in unrolls:
                seeds.append({"tw": tw, "rows": rows, "pad": pad, "unroll_kw": unroll_kw})

    return even_first(seeds, row_chunks(conv, lanes), threads)


def _features(conv: Conv2d, group: int, v: Values) -> Mapping[str, float]:
    rows = v["rows"] or conv.out_height
    return {
        "accumulators": float(v["tw"]),
        "body_fmas": float(v["tw"] * group * (conv.kernel[1] if v["unroll_kw"] else 1)),
        "waste": -(-conv.out_width // v["tw"]) * v["tw"] / conv.out_width,
        "data_sweep_bytes": 64.0 * conv.width * rows * conv.strides[0],
        "chunks": float(conv.batch * (conv.out_height // rows)),
    }


def _compute(workload: Workload, lanes: int, tw: int) -> tirx.PrimFunc:
    conv, epilogue, dtype = conv_of(workload), workload.epilogue, workload.dtype
    blocks, group = -(-conv.in_channels // lanes), conv.in_channels // conv.groups
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    high, wide = conv.out_height, -(-conv.out_width // tw) * tw
    data = te.placeholder((conv.batch, blocks, conv.height, conv.width, lanes), name="data", dtype=dtype)
    weight = te.placeholder((blocks, *conv.kernel, group, lanes), name="weight", dtype=dtype)
    out_shape = (conv.batch, blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape, dtype)
    source = padded_image(data, conv, high, wide) if reads_outside(conv, high, wide) else data
    kh, kw = te.reduce_axis((0, conv.kernel[0]), "kh"), te.reduce_axis((0, conv.kernel[1]), "kw")
    ii = te.reduce_axis((0, group), "ii")

    def total(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        value = source[n, c, y * sy + kh * dy, x * sx + kw * dx, v // group * group + ii]
        return te.sum(value * weight[c, kh, kw, ii, v], axis=[kh, kw, ii])

    sums = te.compute((conv.batch, blocks, high, wide, lanes), total, name="conv")

    def result(*index: Any) -> Any:
        return epilogue_value(epilogue, sums(*index), extra, index=index, dtype=dtype)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def schedule_groups(func: tirx.PrimFunc, conv: Conv2d, k: Values, product: str) -> tirx.PrimFunc:
    """Schedule the stages "pad", if there is one, "conv" and "out" of a function as a config says. `product` is the
    intrinsic that computes the innermost loops, over the channels of a group and over lanes."""
    sch = new_schedule(func)
    sums = sch.get_sblock("conv")
    n, c, y, x, v, kh, kw, ii = sch.get_loops(sums)
    chunk, yi = sch.split(y, [None, k["rows"] or conv.out_height])
    xo, xi = sch.split(x, [None, k["tw"]])
    sch.reorder(n, c, chunk, yi, xo, kh, kw, xi, ii, v)
    parallel = sch.fuse(n, c, chunk)
    sch.parallel(parallel)
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, xo, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    schedule_pad(sch, k["pad"], parallel)
    unroll_tile(sch, sch.get_loops(write)[-2:])
    for loop in (xi, *([kw] if k["unroll_kw"] else [])):
        sch.unroll(loop)
    sch.decompose_reduction(sums, kh)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("conv_init"))[-2:])
    sch.tensorize(ii, product)
    return sch.mod["main"]


@functools.cache
def group_product(group: int, lanes: int, dtype: str = "float32") -> str:
    """Return the name of the intrinsic that adds to a vector of sums the products of all channels of the lanes' groups,
    all of `dtype`. The first call registers it. `group` is the number of channels of a group, which divides the number
    of lanes."""
    along = tirx.Ramp(0, 1, lanes)

    def updated(sums: Any, data: Any, weight: Any) -> Any:
        """Return the new sums."""
        total, vector = sums[along], data[along]
        for i in range(group):
            own = [tirx.const(lane // group * group + i, "int32") for lane in range(lanes)]
            total = total + tirx.Shuffle([vector], own) * weight[i, along]
        return total

    name = f"edgetune.group_product_{group}x{lanes}_{dtype}"
    TensorIntrin.register(name, _description(group, lanes, dtype), _implementation(group, lanes, dtype, updated))
    return name


# mypy: disallow_untyped_decorators=False
# (TVMScript's decorator reads the source text of the functions below; they never run.)


def _description(group: int, lanes: int, dtype: str) -> Any:
    @T.prim_func(s_tir=True)
    def description(data: T.handle, weight: T.handle, sums: T.handle) -> None:
        D = T.match_buffer(data, (lanes,), dtype, align=64, offset_factor=lanes)
        W = T.match_buffer(weight, (group, lanes), dtype, align=64, offset_factor=lanes)
        S = T.match_buffer(sums, (lanes,), dtype, align=64, offset_factor=lanes, scope="local")
        with T.sblock("root"):
            T.reads(S[0:lanes], D[0:lanes], W[0:group, 0:lanes])
            T.writes(S[0:lanes])
            for i, lane in T.grid(group, lanes):
                with T.sblock("update"):
                    v, ii = T.axis.remap("SR", [lane, i])
                    S[v] = S[v] + D[v // group * group + ii] * W[ii, v]

    return description


def _implementation(group: int, lanes: int, dtype: str, updated: Any) -> Any:
    @T.prim_func(s_tir=True)
    def implementation(data: T.handle, weight: T.handle, sums: T.handle) -> None:
        D = T.match_buffer(data, (lanes,), dtype, align=64, offset_factor=lanes)
        W = T.match_buffer(weight, (group, lanes), dtype, align=64, offset_factor=lanes)
        S = T.match_buffer(sums, (lanes,), dtype, align=64, offset_factor=lanes, scope="local")
        with T.sblock("root"):
            T.reads(S[0:lanes], D[0:lanes], W[0:group, 0:lanes])
            T.writes(S[0:lanes])
            S[T.ramp(0, 1, lanes)] = updated(S, D, W)

    return implementation
