"""The template that computes direct convolutions by subgroups of 8 or 16 work-items on Intel GPUs.

Data is (N, C/v, H, W, v), the output is (N, K/v, OH, OW, v). Each lane of a subgroup computes v / size output channels
of `ob` blocks for a tile of `th` x `tw` pixels. For one block of input channels and one kernel row the subgroup reads
the pixels that it needs into registers, each lane v / size channels of every pixel. A lane then reads the other lanes'
values by shuffles from constant lanes, for which Intel's compiler emits no instruction. Weights are read once per
subgroup, one row of `size` output channels at a time.

Source: Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", ICPP 2019, section
3.2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, te, tirx
from tvm.s_tir import SBlock
from tvm.target import Target

from templates.blocking import blocking, divisors, pack_oihw, tile_sizes
from templates.direct import DirectProblem, reader
from templates.gpu.limits import GpuLimits, gpu_limits
from templates.gpu.stages import launch, own_loops
from templates.intel.postprocess import BLOCK_READ, subgroup_target
from templates.rewrite import block_with
from templates.space import Constraint, Knob, Space, Values
from templates.stages import epilogue_operands, epilogue_value, new_schedule
from templates.template import AnchorTemplate, Layout, Layouts
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

LANES = 16  # channels of a block; a subgroup of 8 computes it in two halves
SIZES = (16, 8)
# A thread has 128 registers of 8 values for its whole subgroup. It spills if fewer than SPARE_FLOATS per lane are left
# for addresses and for what the compiler loads early (found with Intel's offline compiler for Gen9).
REGISTER_FILE_FLOATS = 1024
SPARE_FLOATS = 18
# The most unrolled multiply-adds. Intel's compiler needs seconds for longer bodies.
MAX_UNROLLED = 2048


@dataclass(frozen=True)
class _Problem(DirectProblem):
    """A convolution on an Intel GPU, with methods that derive a lane's registers and work from knob values."""

    def sums(self, v: Values) -> int:
        """Return how many accumulators a lane has."""
        return v["ob"] * (LANES // v["size"]) * v["th"] * v["tw"]

    def pixels(self, v: Values) -> int:
        """Return how many pixels a subgroup holds at a time: those under one kernel row of the tile."""
        return ((v["th"] - 1) * self.conv.strides[0] + 1) * self.reach(1, v["tw"])[1]

    def registers(self, v: Values) -> int:
        """Return how many values per lane are live in the inner loops."""
        return self.sums(v) + (self.pixels(v) + v["ui"] * v["ob"]) * (LANES // v["size"])

    def body(self, v: Values) -> int:
        """Return how many multiply-adds a lane does in the unrolled body."""
        return self.sums(v) * self.conv.kernel[1] * LANES


class SubgroupConv(AnchorTemplate):
    """A template in which a lane's tile has `ob` output blocks, `th` rows and `tw` columns.

    Its other knobs: `size` is that of a subgroup. The weights of `ui` input channels are in registers at a time. A
    work-group has `subgroups` subgroups, which read the same pixels. `block_read` loads by subgroup block reads instead
    of one address per lane.
    """

    name = "intel.conv2d_subgroup"
    op = "conv2d"

    def _problem(self, workload: Workload) -> _Problem:
        conv = conv_of(workload)
        return _Problem(conv, blocking(conv, LANES), plain_data=False)

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(Layout(LANES), Layout(LANES))

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        # Only Intel's GPUs read another lane's register at no cost; on a CPU every shuffle is an instruction.
        if limits is None or limits.family != "intel" or not _sizes(limits):
            return None
        problem = self._problem(workload)
        if problem.conv.is_depthwise or problem.conv.in_channels < LANES:
            return None
        constraints = _constraints(problem, limits)
        return Space(
            self.name, _knobs(problem, limits), constraints, _seeds(problem, limits), partial(_features, problem)
        )

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return f"size{config['size']}"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload)
        packed = pack_oihw(problem.conv, problem.blocks, weight)  # (K/16, C/16, R, S, 16 in, 16 out)
        split = packed.reshape(*packed.shape[:-1], LANES // config["size"], config["size"])
        return np.ascontiguousarray(np.moveaxis(split, -2, -3))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = self._problem(workload)
        func = _compute(problem, workload.epilogue, config.knobs)
        func = _schedule(func, config.knobs)
        if config["block_read"]:
            func = _with_block_reads(func, config["size"])
        return func.with_attr("target", subgroup_target(target, config["size"]))


def _sizes(limits: GpuLimits) -> tuple[int, ...]:
    return tuple(size for size in SIZES if size in limits.subgroups)


def _knobs(problem: _Problem, limits: GpuLimits) -> tuple[Knob, ...]:
    b = problem.blocks
    return (
        Knob("size", _sizes(limits)),
        Knob("ob", divisors(b.out_blocks, 4)),
        Knob("th", tile_sizes(problem.rows, 4)),
        Knob("tw", tile_sizes(problem.columns, 32)),
        Knob("ui", (1, 2, 4, 8)),
        Knob("subgroups", divisors(b.all_out_blocks, 8)),
        Knob("block_read", (1, 0)),
    )


def _constraints(problem: _Problem, limits: GpuLimits) -> tuple[Constraint, ...]:
    def one_group(v: Values) -> bool:
        """Tell whether TVM can prove that all channels of a lane read the same input."""
        return problem.blocks.groups == 1 or v["ob"] == 1 or problem.blocks.out_blocks % (v["ob"] * v["subgroups"]) == 0

    def fits(v: Values) -> bool:
        return problem.registers(v) <= REGISTER_FILE_FLOATS // v["size"] - SPARE_FLOATS

    return (
        Constraint(
            "the work-group is larger than the device's", lambda v: v["size"] * v["subgroups"] <= limits.max_threads
        ),
        Constraint("the tile does not fit into a lane's registers", fits),
        Constraint("too many unrolled multiply-adds", lambda v: problem.body(v) <= MAX_UNROLLED),
        Constraint("the pixels in registers are of one group", one_group),
        Constraint(
            "the subgroups do not divide the output blocks",
            lambda v: problem.blocks.all_out_blocks % (v["ob"] * v["subgroups"]) == 0,
        ),
    )


def _seeds(problem: _Problem, limits: GpuLimits) -> tuple[Values, ...]:
    """Return four tiles with the fewest loads per useful multiply-add for every size of a subgroup."""
    constraints = _constraints(problem, limits)
    names = ("size", "ob", "th", "tw", "ui", "subgroups")
    knobs = {knob.name: knob.values for knob in _knobs(problem, limits)}
    found = []
    for values in product(*(knobs[name] for name in names)):
        v = dict(zip(names, values, strict=True))
        if v["subgroups"] <= 2 and all(c.holds(v) for c in constraints):
            row = _features(problem, v)
            found.append((row["loads_per_fma"] * row["waste"], v))
    best = sorted(found, key=lambda f: f[0])
    return tuple(v for size in knobs["size"] for v in [v for _, v in best if v["size"] == size][:4])


def _features(problem: _Problem, v: Values) -> Mapping[str, float]:
    """Compute features of the loops: registers, loads per multiply-add, size of the body, work-items."""
    conv, b = problem.conv, problem.blocks
    loads = problem.pixels(v) + conv.kernel[1] * LANES * v["ob"]
    pixels = problem.tall(v["th"]) * problem.wide(v["tw"])
    tiles = conv.batch * pixels // (v["th"] * v["tw"])
    return {
        "accumulators": float(problem.sums(v)),
        "registers": float(problem.registers(v)),
        "body_fmas": float(problem.body(v)),
        "loads_per_fma": loads * (LANES // v["size"]) / problem.body(v),
        "waste": pixels / (problem.rows * problem.columns),
        "items": float(tiles * (b.all_out_blocks // v["ob"]) * v["size"]),
    }


def _compute(problem: _Problem, epilogue: tuple[str, ...], k: Values) -> tirx.PrimFunc:
    """Build the function of `templates.direct` with the output lanes of sums and weights split into rows of `size`."""
    conv, b, size = problem.conv, problem.blocks, k["size"]
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    data = te.placeholder((conv.batch, b.groups * b.in_blocks, conv.height, conv.width, LANES), name="data")
    weight = te.placeholder((b.all_out_blocks, b.in_blocks, *conv.kernel, LANES // size, LANES, size), name="weight")
    out_shape = (conv.batch, b.all_out_blocks, conv.out_height, conv.out_width, LANES)
    extra = epilogue_operands(epilogue, out_shape)
    read = reader(problem, data, (k["th"], k["tw"]), staged=True)
    ic, kh = te.reduce_axis((0, b.in_blocks), "ic"), te.reduce_axis((0, conv.kernel[0]), "kh")
    kw, ii = te.reduce_axis((0, conv.kernel[1]), "kw"), te.reduce_axis((0, LANES), "ii")

    def tap(n: Any, o: Any, y: Any, x: Any, row: Any, lane: Any) -> Any:
        block = b.first_input(o) + ic
        return read(n, block, y * sy + kh * dy, x * sx + kw * dx, ii) * weight[o, ic, kh, kw, row, ii, lane]

    sums = te.compute(
        (conv.batch, b.all_out_blocks, problem.tall(k["th"]), problem.wide(k["tw"]), LANES // size, size),
        lambda *index: te.sum(tap(*index), axis=[ic, kh, kw, ii]),
        name="conv",
    )

    def result(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        pixel = (0, y * conv.out_width + x) if problem.flat else (y, x)
        return epilogue_value(epilogue, sums[n, o, *pixel, v // size, v % size], extra, index=(n, o, y, x, v))

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def _schedule(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the loops as: groups | subgroups | lanes | input blocks | kernel rows | unrolled register tile.

    Pixels are read inside the loop over kernel rows, and weights in the unrolled loops. Everything inside a kernel row
    is unrolled, because the lane of a shuffle and the index of a register must be constants.
    """
    sch = new_schedule(func)
    conv, pixels = sch.get_sblock("conv"), sch.get_sblock("pad")
    n, o, y, x, row, lane, ic, kh, kw, ii = sch.get_loops(conv)
    og, ot, oi = sch.split(o, [None, k["subgroups"], k["ob"]])
    yo, yi = sch.split(y, [None, k["th"]])
    xo, xi = sch.split(x, [None, k["tw"]])
    io, iu = sch.split(ii, [None, k["ui"]])
    sch.reorder(n, og, yo, xo, ot, lane, ic, kh, kw, io, iu, oi, row, yi, xi)
    bound = launch(sch, {"blockIdx.y": [n, og], "blockIdx.x": [yo, xo], "threadIdx.y": [ot], "threadIdx.x": [lane]})
    write = sch.cache_write(conv, 0, "local")
    sch.reverse_compute_at(write, lane, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    sch.set_scope(pixels, 0, "warp")
    sch.compute_at(pixels, kh, preserve_unit_loops=True)
    *outer, channel = own_loops(sch, pixels)
    part, reading = sch.split(channel, [None, k["size"]])
    sch.bind(reading, "threadIdx.x")
    weights = sch.cache_read(conv, 1, "local")
    sch.compute_at(weights, io, preserve_unit_loops=True)
    init = sch.decompose_reduction(conv, ic)
    around = [loop for block in (init, write) for loop in sch.get_loops(block)[len(bound) :]]
    for loop in (*around, *outer, part, *own_loops(sch, weights), kw, io, iu, oi, row, yi, xi):
        sch.unroll(loop)
    return sch.mod["main"]


def _with_block_reads(func: tirx.PrimFunc, size: int) -> tirx.PrimFunc:
    """Read pixels and weights by block reads: one message for all lanes, instead of one address per lane."""

    def load(node: Any) -> Any:
        *leading, lane = node.indices
        first = tirx.address_of(tirx.BufferLoad(node.source, [*leading, lane // size * size]))
        return tirx.call_pure_extern("float32", BLOCK_READ, first)

    def visit(block: Any) -> Any:
        if block.name_hint not in ("pad", "weight_local"):
            return block
        body = tvm_ffi.structural_map(block.body, [(ir.TensorLoad, load)])
        return block_with(block, body=body)

    return func.with_body(tvm_ffi.structural_map(func.body, [(SBlock, visit)]))
