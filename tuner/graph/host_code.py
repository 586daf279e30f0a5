"""What a function for a GPU leaves to the host. Start at `touches_memory_on_host`."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad


def touches_memory_on_host(func: tirx.PrimFunc) -> bool:
    """Whether a function reads or writes a tensor outside every kernel: TVM compiles that for the host without a
    word, where a device's memory is a handle."""
    found: list[Any] = []

    def loop(node: Any) -> Any:
        return tvm_ffi.WalkResult.SKIP if node.thread_binding is not None else None

    def attribute(node: Any) -> Any:
        return tvm_ffi.WalkResult.SKIP if node.attr_key == "thread_extent" else None

    accesses = ((TensorLoad, tirx.BufferStore), found.append)
    tvm_ffi.structural_walk(func.body, [(tirx.For, loop), (tirx.AttrStmt, attribute), accesses], order="pre")
    return bool(found)
