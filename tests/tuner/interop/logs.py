"""Lines as AutoTVM 0.2 writes them: one of each kind of record that its templates made."""

from __future__ import annotations

import json
from typing import Any

JETSON = "cuda -keys=cuda,gpu -max_num_threads=1024 -model=tx2 -thread_warp_size=32"
MALI = "opencl -model=rk3588 -device=mali"
SKYLAKE = "llvm -mcpu=skylake-avx512"


def tensor(*shape: int, dtype: str = "float32") -> list[Any]:
    return ["TENSOR", list(shape), dtype]


def split(**sizes: list[int]) -> list[list[Any]]:
    return [[name, "sp", list(parts)] for name, parts in sizes.items()]


def record(
    target: str, task: str, args: list[Any], entity: list[Any], costs: tuple[float, ...] = (1e-3,), error: int = 0
) -> dict[str, Any]:
    """`costs` are seconds; a failure has the one cost 1e9."""
    return {
        "input": [target, task, args, {}],
        "config": {"index": 12, "code_hash": None, "entity": entity},
        "result": [[1e9] if error else list(costs), error, 2.5, 1600000000.25],
        "version": 0.2,
        "tvm_version": "0.8.0",
    }


def conv_args(channels: int, size: int, outputs: int, kernel: int, stride: int, pad: int) -> list[Any]:
    data, weight = tensor(1, channels, size, size), tensor(outputs, channels, kernel, kernel)
    return [data, weight, [stride, stride], [pad] * 4, [1, 1], "float32"]


CUDA_TILES = [
    *split(tile_f=[2, 2, 8, 2], tile_y=[14, 1, 2, 1], tile_x=[1, 4, 7, 1]),
    *split(tile_rc=[16, 4], tile_ry=[1, 3], tile_rx=[3, 1]),
    ["auto_unroll_max_step", "ot", 512],
    ["unroll_explicit", "ot", 1],
]
CUDA = record(JETSON, "conv2d_nchw.cuda", conv_args(64, 28, 64, 3, 1, 1), CUDA_TILES, (2e-4, 2.5e-4, 2.1e-4))
SPATIAL_PACK = record(
    MALI,
    "conv2d_nchw_spatial_pack.mali",
    conv_args(64, 28, 64, 3, 1, 1),
    [
        *split(tile_co=[4, 4, 4], tile_oh=[14, 1, 2], tile_ow=[1, 7, 4]),
        ["reorder_0", "re", [0, 1, 2, 3, 4, 5, 6, 9, 7, 8]],
        ["ann_reduce", "an", ["unroll", "unroll"]],
        ["ann_spatial", "an", ["unroll", "unroll", "vec"]],
    ],
)
PACKED = record(
    SKYLAKE,
    "conv2d_NCHWc.x86",
    [*conv_args(64, 56, 64, 3, 1, 1)[:5], "NCHW", "NCHW", "float32"],
    [*split(tile_ic=[1, 64], tile_oc=[2, 32], tile_ow=[8, 7]), ["unroll_kw", "ot", True]],
)
DEPTHWISE = record(
    JETSON,
    "depthwise_conv2d_nchw.cuda",
    [tensor(1, 32, 28, 28), tensor(32, 1, 3, 3), [2, 2], [1, 1], [1, 1], "float32"],
    split(tile_f=[8, 1, 4, 1], tile_y=[1, 1, 14, 1], tile_x=[1, 1, 14, 1]),
)
DENSE = record(
    MALI,
    "dense.mali",
    [tensor(1, 512), tensor(1000, 512), tensor(1000), None],
    split(tile_y=[1, 1, 1], tile_x=[40, 25, 1]),
)
FAILED = record(JETSON, "conv2d_nchw.cuda", conv_args(64, 28, 64, 3, 1, 1), CUDA_TILES, error=7)
TRANSPOSED = record(JETSON, "conv2d_transpose_nchw.cuda", conv_args(64, 28, 64, 3, 1, 1), [])

ALL = (CUDA, SPATIAL_PACK, PACKED, DEPTHWISE, DENSE, FAILED)


def lines(*records: dict[str, Any]) -> bytes:
    return b"# tuned elsewhere\n" + b"".join(json.dumps(r).encode() + b"\n" for r in records)
