"""What every depthwise template computes: in blocked layout every lane is its own channel.

Data (N, C/v, H, W, v), weights (C/v, R, S, v), output (N, C/v, OH, OW, v).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from templates.stages import as_float32, epilogue_operands, epilogue_value, zero_padded
from templates.workloads import Conv2d


def reach(conv: Conv2d, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the padded input that so many rows and columns of the output read."""
    return (
        (rows - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilation[0] + 1,
        (columns - 1) * conv.strides[1] + (conv.kernel[1] - 1) * conv.dilation[1] + 1,
    )


def reads_outside(conv: Conv2d, rows: int, columns: int) -> bool:
    """Whether computing so many rows and columns (at least the output's) reads pixels outside the image."""
    high, wide = reach(conv, rows, columns)
    return any(conv.padding) or high > conv.height or wide > conv.width


def depthwise_compute(
    conv: Conv2d,
    lanes: int,
    epilogue: tuple[str, ...],
    th: int,
    tw: int,
    *,
    staged: bool = False,
    dtype: str = "float32",
) -> tirx.PrimFunc:
    """pad (where pixels outside the image are read, or `staged`) -> conv on whole tiles of th x tw -> out.

    All that is stored is a `dtype`; sums are float32.
    """
    blocks = -(-conv.in_channels // lanes)
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    tall, wide = -(-conv.out_height // th) * th, -(-conv.out_width // tw) * tw
    top, left = conv.padding[:2]
    data = te.placeholder((conv.batch, blocks, conv.height, conv.width, lanes), name="data", dtype=dtype)
    weight = te.placeholder((blocks, *conv.kernel, lanes), name="weight", dtype=dtype)
    out_shape = (conv.batch, blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape, dtype)
    source = data
    if staged or reads_outside(conv, tall, wide):
        source = te.compute(
            (conv.batch, blocks, *reach(conv, tall, wide), lanes),
            lambda n, c, y, x, v: zero_padded(
                lambda py, px: data[n, c, py, px, v],
                y - top,
                x - left,
                height=conv.height,
                width=conv.width,
                dtype=dtype,
            ),
            name="pad",
        )
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
    """(C, 1, R, S) to (C/v, R, S, v), zero-filled."""
    c, _, r, s = weight.shape
    blocks = -(-c // lanes)
    padded = np.pad(weight[:, 0], ((0, blocks * lanes - c), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(blocks, lanes, r, s).transpose(0, 2, 3, 1))
