"""The depthwise convolution as tensor expressions, which every depthwise template schedules.

Start at `depthwise_compute`. Layouts are blocked, and every lane of a block is a channel of its own: data (N, C/v, H,
W, v), weights (C/v, R, S, v), output (N, C/v, OH, OW, v).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from templates.integers import INTEGERS, MOST_TAPS, SUMS, Types
from templates.stages import border_of, epilogue_operands, epilogue_value, padded_with, stored_as, zero
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Workload


def sums_are_exact(conv: Conv2d) -> bool:
    """Tell whether the sums of a depthwise convolution of integers are exact in float32."""
    return conv.kernel[0] * conv.kernel[1] <= MOST_TAPS


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


def padded_image(data: te.Tensor, conv: Conv2d, rows: int, columns: int, border: Any = None) -> te.Tensor:
    """Return the stage "pad": blocked data (N, C/v, H, W, v), with `border` (default: zeros) as far as `rows` x
    `columns` output pixels read. Integers become float32."""
    n, blocks, _, _, lanes = data.shape
    top, left = conv.padding[:2]
    outside = zero(str(data.dtype)) if border is None else border
    size, held = (conv.height, conv.width), "float32" if str(data.dtype) == INTEGERS else str(data.dtype)

    def value(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        # Both are converted before one is chosen: TVM's code for CUDA cannot repeat a byte for all lanes of a vector.
        return padded_with(
            stored_as(outside, held),
            lambda py, px: stored_as(data[n, c, py, px, v], held),
            y - top,
            x - left,
            size=size,
        )

    return te.compute((n, blocks, *reach(conv, rows, columns), lanes), value, name="pad")


def depthwise_compute(
    workload: Workload, lanes: int, tile: tuple[int, int], *, staged: bool = False, summed: str = "float32"
) -> tirx.PrimFunc:
    """Build the unscheduled function with the stages "pad", "conv" and "out".

    "pad" exists only if pixels outside the image are read, or if `staged`. "conv" computes whole tiles of `tile`
    rows and columns, "out" applies the epilogue to the pixels inside the output. Operands, weights and results are of
    the workload's dtype, sums of `summed`. The weights of integers are float32, as their sums are, which are exact
    (`MOST_TAPS`).
    """
    conv, epilogue, dtype, (th, tw) = conv_of(workload), workload.epilogue, workload.dtype, tile
    blocks = -(-conv.in_channels // lanes)
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    tall, wide = -(-conv.out_height // th) * th, -(-conv.out_width // tw) * tw
    types, integer = Types.named(dtype, epilogue), dtype == INTEGERS
    data = te.placeholder((conv.batch, blocks, conv.height, conv.width, lanes), name="data", dtype=types.data)
    weight = te.placeholder((blocks, *conv.kernel, lanes), name="weight", dtype="float32" if integer else dtype)
    out_shape = (conv.batch, blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape, types.extra)
    border = border_of(epilogue, extra)
    padded = staged or integer or reads_outside(conv, tall, wide)
    source = padded_image(data, conv, tall, wide, border) if padded else data
    kh, kw = te.reduce_axis((0, conv.kernel[0]), "kh"), te.reduce_axis((0, conv.kernel[1]), "kw")

    def total(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        value = source[n, c, y * sy + kh * dy, x * sx + kw * dx, v]
        return te.sum(stored_as(value, summed) * stored_as(weight[c, kh, kw, v], summed), axis=[kh, kw])

    sums = te.compute((conv.batch, blocks, tall, wide, lanes), total, name="conv")

    def result(*index: Any) -> Any:
        value = sums(*index).astype(SUMS) if integer else sums(*index)
        return epilogue_value(epilogue, value, extra, index=index, dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def pack_depthwise(weight: np.ndarray, lanes: int) -> np.ndarray:
    """Pack a weight (C, 1, R, S) as (C/v, R, S, v). The last block is filled up with zeros."""
    c, _, r, s = weight.shape
    blocks = -(-c // lanes)
    padded = np.pad(weight[:, 0], ((0, blocks * lanes - c), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(blocks, lanes, r, s).transpose(0, 2, 3, 1))
