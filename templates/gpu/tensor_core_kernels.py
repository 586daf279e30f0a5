"""The tensor expressions that `templates.gpu.tensor_core` computes, and their schedule. Layouts are explained there.

The convolution is a product with an implicit matrix (the stage "columns"). A row of it is an output pixel, and its
columns are what a kernel position reads of a block of input channels. The matrix exists only in local memory, a tile at
a time. The innermost loops become operations of warps on fragments (templates.gpu.fragments). With `tensorize=False`
they stay loops, and the same schedule runs on any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from templates.blocking import Blocking
from templates.gpu.byte_fragments import COLUMNS
from templates.gpu.fragments import SCOPES, STORED, Fragments, fragment_intrinsics
from templates.gpu.limits import GpuLimits
from templates.gpu.stages import Group, cooperate, launch, overlap_copies, own_loops, vector_widths
from templates.integers import INTEGERS, SUMS, Types
from templates.space import Values
from templates.stages import (
    border_of,
    epilogue_operands,
    epilogue_value,
    has_block,
    new_schedule,
    unroll_tile,
    zero,
)
from templates.words import BYTES, repeated
from templates.workloads import Conv2d

FRAGMENT = 16  # rows (pixels) of a fragment of sums; of real numbers also columns (output channels)
WARP = 32
_DEPTHS = {"float16": 16, "float32": 8, INTEGERS: 32}  # input channels of a fragment; float32 is tf32
# Bytes added to every row in local memory, so that the eight rows that a warp loads at a time lie in different banks.
_SKEW_BYTES = 16
_COPY_BYTES = 16  # bytes of the widest load


@dataclass(frozen=True)
class TensorCoreProblem:
    """A convolution on tensor cores, with methods that derive groups, registers and local memory from knob values.

    `dtype` is "float16", "float32", which is rounded to tf32, or "uint8": data and weights of integers are words of
    four channels (`templates.words`).
    """

    conv: Conv2d
    blocks: Blocking
    dtype: str
    limits: GpuLimits

    @property
    def words(self) -> bool:
        return self.dtype == INTEGERS

    @property
    def block(self) -> int:
        """Return the channels of a block, which are the columns of a fragment of sums."""
        return block_of(self.dtype)

    @property
    def values(self) -> int:
        """Return how many values a pixel's channels of a block are read as: as many, or words."""
        return self.block // BYTES if self.words else self.block

    @property
    def depth(self) -> int:
        return _DEPTHS[self.dtype]

    @property
    def read(self) -> str:
        """Return the type that data and weights are read as."""
        return SUMS if self.words else self.dtype

    @property
    def fragments(self) -> Fragments:
        return Fragments(FRAGMENT, self.block, self.depth, self.read)

    @property
    def value_bytes(self) -> int:
        return 2 if self.dtype == "float16" else 4

    @property
    def pixels(self) -> int:
        """Count the output pixels of all images, which are the rows of the matrix product."""
        return self.conv.batch * self.conv.out_height * self.conv.out_width

    @property
    def copy_width(self) -> int:
        """Return how many values an item copies into local memory at a time."""
        return _COPY_BYTES // self.value_bytes

    def tile(self, v: Values) -> tuple[int, int]:
        """Return how many pixels, and blocks of output channels, a group computes."""
        return v["mt"] * v["mi"] * FRAGMENT, v["nt"] * v["ni"]

    def covered(self, v: Values) -> int:
        """Return the number of pixels rounded up to whole tiles."""
        pixels, _ = self.tile(v)
        return -(-self.pixels // pixels) * pixels

    def waste(self, v: Values) -> float:
        """Return the ratio of the pixels that are computed to those that are needed."""
        return self.covered(v) / self.pixels

    def group(self, v: Values) -> Group:
        return Group(v["nt"], v["mt"], WARP)

    def groups(self, v: Values) -> int:
        pixels, blocks = self.tile(v)
        return self.covered(v) // pixels * (self.blocks.all_out_blocks // blocks)

    def turns(self, v: Values) -> int:
        """Return how often local memory is filled."""
        kh, kw = self.conv.kernel
        return self.blocks.in_blocks // v["ct"] * kh * kw

    def registers(self, v: Values) -> int:
        """Return how many 32-bit registers an item's share of the fragments takes."""
        held = FRAGMENT * self.block * v["mi"] * v["ni"] * 4
        read = self.depth * (FRAGMENT * v["mi"] + self.block * v["ni"]) * self.value_bytes * self.values // self.block
        return (held + read) // (4 * WARP)

    def row_values(self, v: Values) -> int:
        """Return the distance, in values, of one row in local memory from the next."""
        return self.values + (_SKEW_BYTES // self.value_bytes if v["skew"] else 0)

    def local_bytes(self, v: Values) -> int:
        """Return the bytes of local memory that a group needs.

        It holds the input and the weights of a turn (of two turns, if copies are asynchronous), and all sums.
        """
        pixels, blocks = self.tile(v)
        copied = v["ct"] * (pixels + blocks * self.block) * self.row_values(v) * self.value_bytes
        return copied * (2 if v.get("asynchronous", 0) else 1) + pixels * blocks * self.block * 4


def block_of(dtype: str) -> int:
    """Return the channels of a block of numbers of a type."""
    return COLUMNS if dtype == INTEGERS else FRAGMENT


def tensor_core_compute(p: TensorCoreProblem, epilogue: tuple[str, ...], v: Values) -> tirx.PrimFunc:
    """Build the unscheduled function with the stages "columns", "a" and "b", "conv" and "out".

    "a" and "b" are the operands of fragments. "conv" computes whole tiles of pixels, and "out" applies the epilogue.
    """
    conv, b, types = p.conv, p.blocks, Types.named(p.dtype, epilogue)
    data_shape = (conv.batch, b.groups * b.in_blocks, conv.height, conv.width, p.values)
    data = te.placeholder(data_shape, name="data", dtype=p.read)
    packed = (b.all_out_blocks, b.in_blocks, *conv.kernel, *((p.block, p.values) if p.words else (p.values, p.block)))
    weight = te.placeholder(packed, name="weight", dtype=p.read)
    out_shape = (conv.batch, b.all_out_blocks, conv.out_height, conv.out_width, p.block)
    extra = epilogue_operands(epilogue, out_shape, types.extra)
    sums = fragment_sums(p, _columns(p, data, p.covered(v), border_of(epilogue, extra)), weight)

    def result(n: Any, o: Any, y: Any, x: Any, lane: Any) -> Any:
        summed, index = sums[o, (n * conv.out_height + y) * conv.out_width + x, lane], (n, o, y, x, lane)
        return epilogue_value(epilogue, summed, extra, index, dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def fragment_sums(
    p: TensorCoreProblem, columns: te.Tensor, weight: te.Tensor, *, groups_apart: bool = False
) -> te.Tensor:
    """Return the stage "conv" (output blocks, pixels, lanes) of what pixels read, as `_columns` has it, and weights.

    Its operands are the stages "a" and "b". With `groups_apart` an output block's group and its number there are two
    axes.
    """
    conv, b, fragments = p.conv, p.blocks, p.fragments
    left, right = _operand(p, "a", columns), _operand(p, "b", weight)
    ic, kh = te.reduce_axis((0, b.in_blocks), "ic"), te.reduce_axis((0, conv.kernel[0]), "kh")
    kw, ii = te.reduce_axis((0, conv.kernel[1]), "kw"), te.reduce_axis((0, p.block), "ii")

    def total(*index: Any) -> Any:
        *group, o, pixel, lane = index
        o = group[0] * b.out_blocks + o if group else o
        block = b.first_input(o) + ic
        row, tap = left[block, kh, kw, pixel, ii], (lambda i, j: right[o, ic, kh, kw, i, j])
        return te.sum(fragments.product(row, tap, ii, lane), axis=[ic, kh, kw, ii])

    outer = (b.groups, b.out_blocks) if groups_apart else (b.all_out_blocks,)
    return te.compute((*outer, columns.shape[3], p.block), total, name="conv")


def _operand(p: TensorCoreProblem, name: str, stored: te.Tensor) -> te.Tensor:
    """Return the stage "a" or "b" of fragments, whose values come from what is stored in local memory. Its last axis
    has the channels of a block, those of the input or the output."""

    def value(*index: Any) -> Any:
        *at, row, column = index
        return p.fragments.loaded(name, lambda i, j: stored[(*at, i, j)], row, column)

    return te.compute((*stored.shape[:-1], p.block), value, name=name)


def _columns(p: TensorCoreProblem, data: te.Tensor, covered: int, border: Any) -> te.Tensor:
    """Compute what each output pixel reads: (input blocks, kernel rows, kernel columns, pixels, values).

    A value outside the image is 0, or `border`, a byte, if that is given.
    """
    conv = p.conv
    (sy, sx), (dy, dx), (top, left) = conv.strides, conv.dilation, conv.padding[:2]
    image = conv.out_height * conv.out_width
    outside = zero(p.read) if border is None else repeated(border)

    def read(c: Any, kh: Any, kw: Any, pixel: Any, lane: Any) -> Any:
        y = pixel % image // conv.out_width * sy + kh * dy - top
        x = pixel % conv.out_width * sx + kw * dx - left
        value = data[pixel // image, c, y, x, lane]
        inside = [pixel < p.pixels] if covered > p.pixels else []
        if any(conv.padding):
            inside += [y >= 0, y < conv.height, x >= 0, x < conv.width]
        return tirx.if_then_else(tirx.all(*inside), value, outside) if inside else value

    shape = (p.blocks.groups * p.blocks.in_blocks, *conv.kernel, covered, p.values)
    return te.compute(shape, read, name="columns")


def schedule_tensor_core(p: TensorCoreProblem, func: tirx.PrimFunc, k: Values, tensorize: bool = True) -> tirx.PrimFunc:
    """Schedule the loops as: groups | warps | copies into local memory | fragments.

    Without `tensorize` every item of a warp computes all fragments of the warp in loops. This is slow, but the results
    are the same.
    """
    sch = new_schedule(func)
    conv = sch.get_sblock("conv")
    *group, o, pixel, lane, ic, kh, kw, ii = sch.get_loops(conv)
    ob, ot, oi = sch.split(o, [None, k["nt"], k["ni"]])
    pb, pt, pi, row = sch.split(pixel, [None, k["mt"], k["mi"], FRAGMENT])
    co, ci = sch.split(ic, [None, k["ct"]])
    step, depth = sch.split(ii, [None, p.depth])
    sch.reorder(*group, ob, pb, ot, pt, co, kh, kw, ci, step, oi, pi, row, lane, depth)
    turn = sch.fuse(co, kh, kw)
    tags = {"blockIdx.y": [*group, ob], "blockIdx.x": [pb], "threadIdx.z": [ot], "threadIdx.y": [pt]}
    bound = launch(sch, tags)
    fragments = p.fragments
    names = fragment_intrinsics(fragments) if tensorize else {}
    _schedule_output(p, sch, k, tile=bound["blockIdx.x"], warp=bound["threadIdx.y"], names=names)
    for name in ("a", "b"):
        fragment = sch.get_sblock(name)
        sch.set_scope(fragment, 0, SCOPES[name] if tensorize else "local")
        sch.compute_at(fragment, step, preserve_unit_loops=True)
    _schedule_copies(p, sch, k, turn)
    _on_fragments(sch, sch.get_sblock("a"), fragments.a, names.get("a"))
    _on_fragments(sch, sch.get_sblock("b"), fragments.b, names.get("b"))
    for loop in (ci, step, oi, pi):
        sch.unroll(loop)
    init = sch.decompose_reduction(conv, turn)
    if tensorize:
        sch.tensorize(sch.get_loops(init)[-2], names["clear"])
        sch.tensorize(row, names["multiply"])
    if k.get("asynchronous", 0):
        overlap_copies(sch, turn, 2)
    return sch.mod["main"]


def _schedule_copies(p: TensorCoreProblem, sch: Schedule, k: Values, turn: Any) -> None:
    """Let all items of a group copy the input and the weights that a turn needs into local memory. Weights that are
    computed are the stage "weights"."""
    computed = has_block(sch, "weights")
    weights = sch.get_sblock("weights") if computed else sch.cache_read(sch.get_sblock("b"), 0, "shared")
    for stage in (sch.get_sblock("columns"), weights):
        cooperate(sch, stage, turn, group=p.group(k), vector=p.copy_width)
        if k["skew"]:
            sch.storage_align(stage, 0, -2, p.values, p.row_values(k) - p.values)


def _schedule_output(
    p: TensorCoreProblem, sch: Schedule, k: Values, *, tile: Any, warp: Any, names: dict[str, str]
) -> None:
    """Schedule the output: fragments of sums are stored to local memory, from where all items apply the epilogue."""
    conv = sch.get_sblock("conv")
    write = sch.cache_write(conv, 0, STORED if names else "shared")
    sch.reverse_compute_at(write, tile, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    *outer, last = own_loops(sch, write)
    group, width = p.group(k), vector_widths(p.limits, p.block)[0]
    last, vector = sch.split(last, [None, width])
    _, z, y, x = sch.split(sch.fuse(*outer, last), [None, group.z, group.y, group.x])
    launch(sch, {"threadIdx.z": [z], "threadIdx.y": [y], "threadIdx.x": [x]})
    unroll_tile(sch, [vector])
    store = sch.cache_write(conv, 0, SCOPES["sums"] if names else "local")
    sch.reverse_compute_at(store, warp, preserve_unit_loops=True)
    _on_fragments(sch, store, (FRAGMENT, p.block), names.get("store"))


def _on_fragments(sch: Schedule, stage: Any, shape: tuple[int, int], intrinsic: str | None) -> None:
    """Copy a stage a fragment at a time: by the intrinsic, or in loops if that is None."""
    *outer, row, column = own_loops(sch, stage)
    rows, row = sch.split(row, [None, shape[0]])
    columns, column = sch.split(column, [None, shape[1]])
    sch.reorder(*outer, rows, columns, row, column)
    for loop in (*outer, rows, columns):
        sch.unroll(loop)
    if intrinsic is not None:
        sch.tensorize(row, intrinsic)
