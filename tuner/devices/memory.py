"""Places arrays in large pages of host memory, for what is read once from end to end in every inference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm

from board_agent.memory import large_pages

_ALIGN = 64  # like TVM's own allocations


def placed_in_large_pages(arrays: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
    """Copy arrays into one piece of memory, and return the copies."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGN) * _ALIGN
    memory = large_pages(end)
    placed = []
    for array, start in zip(arrays, starts, strict=True):
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        placed.append(tvm.runtime.from_dlpack(copy))
    return placed
