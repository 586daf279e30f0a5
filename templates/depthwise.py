"""The depthwise convolution as tensor expressions, which every depthwise template schedules.

Start at `depthwise_compute`. Layouts are blocked, and every lane of a block is a channel of its own: data (N, C/v, H,
W, v), weights (C/v, R, S, v), output (N, C/v, OH, OW, v).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from templates.stages import as_float32, epilogue_operands, epilogue_value, zero_padded
from templates.workloads import Conv2d


def reach(conv: Conv2d, rows: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns of the padded input are read for `rows` x `columns` output pixels."""
    return (
        (rows - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilation[0] + 1,
        (columns - 1) * conv.strides[1] + (conv.kernel[1] - 1) * conv.dilation[1] + 1,
    )


def reads_outside(conv: Conv2d, rows: int, columns: int) -> bool:
    """Tell whether computing `rows` x `columns` output pixels reads pixels outside the image.

    `rows` and `columns` are at least those of the output: tiles may stick out.
    """
    high, wide = reach(conv, rows, columns)
    return any(conv.padding) or high > conv.height or wide > conv.width


def padded_image(data: te.Tensor, conv: Conv2d, rows: int, columns: int) -> te.Tensor:
    """Return the stage "pad": blocked data (N, C/v, H, W, v), with zeros as far as `rows` x `columns` output pixels
    read."""
    n, blocks, _, _, lanes = data.shape
    top, left = conv.padding[:2]
    return te.compute(
        (n, blocks, *reach(conv, rows, columns), lanes),
        lambda n, c, y, x, v: zero_padded(
            lambda py, px: data[n, c, py, px, v],
            y - top,
            x - left,
            height=conv.height,
            width=conv.width,
            dtype=str(data.dtype),
        ),
        name="pad",
    )


def depthwise_compute(
    conv: Conv2d,
    lanes: int,
    epilogue: tuple[str, ...],
    tile: tuple[int, int],
    *,
    staged: bool = False,
    dtype: str = "float32",
) -> tirx.PrimFunc:
    """Build the unscheduled function with the stages "pad", "conv" and "out".

    "pad" exists only if pixels outside the image are read, or if `staged`. "conv" computes whole tiles of `tile`
    rows and columns, "out" applies the epilogue to the pixels inside the output. Operands, weights and results are of
    `dtype`, sums are float32.
    """
    th, tw = tile
    blocks = -(-conv.in_channels // lanes)
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    tall, wide = -(-conv.out_height // th) * th, -(-conv.out_width // tw) * tw
    data = te.placeholder((conv.batch, blocks, conv.height, conv.width, lanes), name="data", dtype=dtype)
    weight = te.placeholder((blocks, *conv.kernel, lanes), name="weight", dtype=dtype)
    out_shape = (conv.batch, blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape, dtype)
    source = padded_image(data, conv, tall, wide) if staged or reads_outside(conv, tall, wide) else data
    kh, kw = te.reduce_axis((0, conv.kernel[0]), "kh"), te.reduce_axis((0, conv.kernel[1]), "kw")

    def total(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        value = source[n, c, y * sy + kh * dy, x * sx + kw * dx, v]
        return te.sum(as_float32(value, dtype) * as_float32(weight[c, kh, kw, v], dtype), axis=[kh, kw])

    sums = te.compute((conv.batch, blocks, tall, wide, lanes), total, name="conv")
    out = te.compute(
        out_shape, lambda *index: epilogue_value(epilogue, sums(*index), extra, index=index, dtype=dtype), name="out"
    )
    return te.create_prim_func([data, weight, *extra, out])


def pack_depthwise(weight: np.ndarray, lanes: int) -> np.ndarray:
    """Pack a weight (C, 1, R, S) as (C/v, R, S, v). The last block is filled up with zeros."""
    c, _, r, s = weight.shape
    blocks = -(-c // lanes)
    padded = np.pad(weight[:, 0], ((0, blocks * lanes - c), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(blocks, lanes, r, s).transpose(0, 2, 3, 1))
