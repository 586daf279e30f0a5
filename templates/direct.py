"""This module describes the direct convolution as tensor expressions, for every kind of device.

Start at `direct_compute`; `cpu.direct`, `gpu.direct` and `mali.spatial_pack` schedule its functions.
Data is (N, C/v, H, W, v) or plain NCHW, weights are (K/v, C/v, R, S, v in, v out), and the output is
(N, K/v, OH, OW, v) or plain NCHW. A few (g) neighbouring input channels of a weight of integers lie together, which is
(K/v, C/v, R, S, v in / g, v out, g), or (K/v, C/v, R, S, v in / 4, v out) in words (`templates.words`); blocked data in
words are (N, C/v, H, W, v / 4). Tiles that stick out of the output are computed whole, on a padded image, and what is
too much is cut off when they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

from templates.bfloats import BFLOAT16
from templates.blocking import Blocking
from templates.integers import AS_GIVEN, INTEGERS, SUMS, Held, Types, lack
from templates.stages import border_of, epilogue_operands, epilogue_value, padded_with, stored_as, widened, zero
from templates.words import moved, product, repeated, word_of
from templates.workloads import Conv2d

# Orders of the reduction's loops: input blocks (ic), kernel rows (kh), kernel columns (kw), and the lanes of an input
# block, which are split into an outer loop (io) and an unrolled one (iu).
ORDERS = {
    "c.kh.kw.i": ("ic", "kh", "kw", "io", "iu"),
    "c.kh.i.kw": ("ic", "kh", "io", "kw", "iu"),
    "c.i.kh.kw": ("ic", "io", "kh", "kw", "iu"),
}


@dataclass(frozen=True)
class DirectProblem:
    """A convolution with the layouts that a template computes it in.

    `summed` is the type that products of halves are summed in. Integers are summed in int32.
    `plain_data` and `plain_out` say whether data and output are NCHW instead of blocked. All pixels are one axis
    (`flat`) if the kernel is 1x1 without stride and padding, and data and output are both plain or both blocked.
    `gathered` is a 1x1 convolution with a stride. If it is given, `conv` is that convolution on the pixels gathered
    from its data, without the stride.
    """

    conv: Conv2d
    blocks: Blocking
    plain_data: bool
    plain_out: bool = False
    dtype: str = "float32"  # of operands, weights and results; for others see `templates.integers.Types`
    gathered: Conv2d | None = None
    summed: str = "float32"
    held: Held = AS_GIVEN  # where integers or bfloat16 numbers are multiplied

    @property
    def flat(self) -> bool:
        c = self.conv
        if c.kernel != (1, 1) or c.strides != (1, 1) or any(c.padding):
            return False
        return self.plain_data == self.plain_out

    @property
    def rows(self) -> int:
        return 1 if self.flat else self.conv.out_height

    @property
    def columns(self) -> int:
        return self.conv.out_height * self.conv.out_width if self.flat else self.conv.out_width

    def tall(self, th: int) -> int:
        """Return the rows rounded up to whole tiles of `th`."""
        return -(-self.rows // th) * th

    def wide(self, tw: int) -> int:
        """Return the columns rounded up to whole tiles of `tw`."""
        return -(-self.columns // tw) * tw

    def reach(self, th: int, tw: int) -> tuple[int, int]:
        """Return how many input rows and columns an output tile of th x tw pixels reads."""
        conv = self.conv
        return (
            (th - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilation[0] + 1,
            (tw - 1) * conv.strides[1] + (conv.kernel[1] - 1) * conv.dilation[1] + 1,
        )

    def reads_outside(self, th: int, tw: int) -> bool:
        """Tell whether whole tiles of th x tw pixels read beyond the image."""
        reach_y, reach_x = self.reach(self.tall(th), self.wide(tw))
        if self.flat:
            return reach_x > self.columns
        return any(self.conv.padding) or reach_y > self.conv.height or reach_x > self.conv.width

    @property
    def integer(self) -> bool:
        """Tell whether integers of eight bits are multiplied."""
        return self.dtype == INTEGERS

    @property
    def dots(self) -> bool:
        """Tell whether neighbouring input channels are multiplied by one instruction, which sums the products."""
        return self.dtype in (INTEGERS, BFLOAT16)

    @property
    def weight_type(self) -> str:
        """Return the type of the packed weight."""
        return self.held.weight if self.dots else self.dtype

    @property
    def value_bytes(self) -> int:
        """Return how many bytes a stored value of the data takes."""
        return {"float16": 2, INTEGERS: 1}.get(self.dtype, 4)

    @property
    def words(self) -> bool:
        """Tell whether integers are read and multiplied four at a time."""
        return self.integer and self.held.words

    @property
    def depth(self) -> int:
        """Return how many values, or words of four, an input block of a pixel is read as."""
        return self.blocks.in_lanes // self.held.group if self.words else self.blocks.in_lanes

    @property
    def depths(self) -> tuple[int, ...]:
        """Return the sizes of the axes that an input block's lanes are summed over."""
        if self.words or not self.dots:
            return (self.depth,)
        return self.blocks.in_lanes // self.held.group, self.held.group

    def packed_shape(self, ob: int) -> tuple[int, ...]:
        """Return the shape of the packed weight for register tiles of `ob` output blocks."""
        b = self.blocks
        lanes = (self.depths[0], b.lanes, *self.depths[1:])
        return b.padded(ob).all_out_blocks, b.in_blocks + self.held.moved, *self.conv.kernel, *lanes

    def as_summed(self, value: Any) -> Any:
        """Convert a value of the data or the weight to the type that products are summed in."""
        return stored_as(value, self.summed)

    def product(self, value: Any, tap: Any) -> Any:
        """Multiply a value of the data, as `reader` reads it, by one of the packed weight."""
        if self.words:
            return product(value, tap)
        return self.held.product(value, tap) if self.dots else self.as_summed(value) * self.as_summed(tap)

    @property
    def kernel_rows(self) -> int:
        """Count the rows of the kernel in all input blocks of a group, which sums consist of."""
        return self.blocks.in_blocks * self.conv.kernel[0]

    @property
    def weight_bytes(self) -> int:
        return np.dtype(self.weight_type).itemsize * prod(self.packed_shape(1))


def direct_compute(
    problem: DirectProblem,
    epilogue: tuple[str, ...],
    tile: tuple[int, int],
    *,
    staged: bool = False,
    ob: int = 1,
    part: int = 0,
) -> tirx.PrimFunc:
    """Build the unscheduled function with the stages "pad", "conv" and "out".

    "pad" exists only if pixels outside the image are read, or if `staged`. "conv" computes whole tiles of `ob` output
    blocks by `tile` rows and columns, and "out" applies the epilogue. If `part` is not 0, a stage "part" sums over
    each `part` kernel rows, which are those of whole input blocks or divide those of one, and "conv" adds up these
    partial sums, which are float32 unless they are sums of integers.
    """
    conv, b, (th, tw) = problem.conv, problem.blocks, tile
    types, (sy, sx), (dy, dx) = Types.named(problem.dtype, epilogue), conv.strides, conv.dilation
    held = problem.held
    weight_blocks = problem.blocks.padded(ob).all_out_blocks
    given = problem.gathered or conv
    blocked = (conv.batch, b.groups * b.in_blocks, given.height, given.width, problem.depth)
    words = problem.words and not problem.plain_data
    data = te.placeholder(
        conv.data_shape if problem.plain_data else blocked, name="data", dtype=SUMS if words else types.data
    )
    weight = te.placeholder(problem.packed_shape(ob), name="weight", dtype=problem.weight_type)
    out_blocked = (conv.batch, b.all_out_blocks, conv.out_height, conv.out_width, b.lanes)
    out_shape = conv.out_shape if problem.plain_out else out_blocked
    extra = epilogue_operands(epilogue, out_shape, types.extra)
    values = data if problem.gathered is None else gather(data, problem.gathered)
    staged = staged or problem.reads_outside(th, tw) or (problem.dots and (problem.plain_data or held.converted))
    read = reader(problem, values, tile, staged=staged, border=border_of(epilogue, extra))
    part = part or problem.kernel_rows
    high = min(part, conv.kernel[0])
    extents = {"ic": part // high, "kh": high, "kw": conv.kernel[1]}
    ic, kh, kw = (te.reduce_axis((0, extent), name) for name, extent in extents.items())
    ii = [te.reduce_axis((0, size), "ii") for size in problem.depths]

    def total(first: tuple[Any, Any], n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        """Sum over the kernel rows that begin at `first`: an input block, and a row in it."""
        lane = ii[0] * held.group + ii[1] if len(ii) > 1 else ii[0]
        block, row = first[0] + ic, first[1] + kh
        value = read(n, b.first_input(o) + block, y * sy + row * dy, x * sx + kw * dx, lane)
        tap = weight[o, block, row, kw, ii[0], v, *ii[1:]]
        return te.sum(problem.product(value, tap), axis=[ic, kh, kw, *ii])

    tiled = (conv.batch, weight_blocks, problem.tall(th), problem.wide(tw), b.lanes)
    if part == problem.kernel_rows:
        sums = te.compute(tiled, lambda *index: total((0, 0), *index), name="conv")
    else:
        count = problem.kernel_rows // part

        def first_of(c: Any) -> tuple[Any, Any]:
            if high == conv.kernel[0]:
                return c * (part // high), 0
            return c * part // conv.kernel[0], c * part % conv.kernel[0]

        parts = te.compute((count, *tiled), lambda c, *index: total(first_of(c), *index), name="part")
        step = te.reduce_axis((0, count), "step")
        sums = te.compute(tiled, lambda *index: te.sum(widened(parts[step, *index]), axis=step), name="conv")

    def result(*index: Any) -> Any:
        n, channel, y, x, *lane = index
        at = (channel, *lane) if lane else (channel // b.lanes, channel % b.lanes)
        pixel = (0, y * conv.out_width + x) if problem.flat else (y, x)
        summed = sums[n, at[0], *pixel, at[1]]
        if held.moved:
            summed = summed + _lack(problem, weight, *at)
        return epilogue_value(epilogue, summed, extra, index=index, dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def _lack(problem: DirectProblem, weight: te.Tensor, block: Any, lane: Any) -> Any:
    """Return what the sums of moved data lack in a lane of an output block."""
    last, lanes, group = problem.blocks.in_blocks, problem.blocks.lanes, problem.held.group
    if problem.words:
        return weight[block, last, 0, 0, 0, lane]
    return lack(lambda step, v, i: weight[block, last, 0, 0, step, v, i], lane, lanes=lanes, group=group)


def gather(data: te.Tensor, conv: Conv2d) -> te.Tensor:
    """Gather the pixels that a 1x1 convolution with a stride reads, in a stage that is called "pad"."""
    n, c, _, _, lanes = data.shape
    (sy, sx), shape = conv.strides, (n, c, conv.out_height, conv.out_width, lanes)
    return te.compute(shape, lambda n, c, y, x, v: data[n, c, y * sy, x * sx, v], name="pad")


def reader(
    problem: DirectProblem, data: te.Tensor, tile: tuple[int, int], *, staged: bool, border: Any = None
) -> Callable[..., Any]:
    """Return a function read(n, block, y, x, lane) that reads the padded input of whole tiles of rows by columns.

    It reads through a stage "pad" if `staged`, else straight from the data. Values that an intrinsic converts in "pad"
    come from a stage "edges". `border` is what the data outside the image
    counts as (default: 0). Of a problem in words it reads words, whose number in the block is `lane`.
    """
    conv, b, held, (th, tw) = problem.conv, problem.blocks, problem.held, tile
    top, left = conv.padding[:2]
    reach_y, reach_x = problem.reach(problem.tall(th), problem.wide(tw))
    kind = Types.named(problem.dtype, ()).data
    nothing = zero(SUMS if problem.words else kind)
    outside = nothing if border is None else repeated(border) if problem.words else border

    def source(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        """Read the input at a pixel of the padded image that lies inside the image itself."""
        if problem.words and problem.plain_data:
            return word_of(lambda i: value_at(n, c, y, x, v * held.group + i))
        return value_at(n, c, y, x, v)

    def value_at(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        pixel = (x // conv.width, x % conv.width) if problem.flat else (y - top, x - left)
        if not problem.plain_data:
            return data[n, c, *pixel, v]
        value = data[n, c * b.in_lanes + v, *pixel]
        filled = b.in_lanes * b.in_blocks > conv.in_channels  # with lanes whose weights are zero
        return tirx.if_then_else(c * b.in_lanes + v < conv.in_channels, value, zero(kind)) if filled else value

    def padded(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        if not problem.reads_outside(th, tw):
            return source(n, c, y, x, v)
        if problem.flat:
            return tirx.if_then_else(x < problem.columns, source(n, c, y, x, v), nothing)
        size = conv.height, conv.width
        return padded_with(outside, lambda py, px: source(n, c, py + top, px + left, v), y - top, x - left, size=size)

    if not staged:
        return source
    if problem.plain_data and not problem.plain_out and not problem.dots:
        plain = te.compute(
            (conv.batch, b.in_lanes, reach_y, reach_x), lambda n, v, y, x: padded(n, 0, y, x, v), name="pad"
        )
        return lambda n, _c, y, x, v: plain[n, v, y, x]
    shape = (conv.batch, b.groups * b.in_blocks, reach_y, reach_x, problem.depth)
    if problem.words:
        return te.compute(shape, lambda *index: moved(padded(*index)) if held.moved else padded(*index), name="pad")
    if problem.dots:
        given = padded if held.conversion(problem.depth) is None else te.compute(shape, padded, name="edges")
        return te.compute(shape, lambda *index: held.convert(given(*index)), name="pad")
    return te.compute(shape, padded, name="pad")
