"""Put arrays where modules read them without a copy. Start at `aligned`."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64  # of every tensor that kernels read and write, in bytes: they are compiled for it


def aligned(array: np.ndarray) -> np.ndarray:
    """Return an array whose elements stand in order in memory that begins at a multiple of 64 bytes, so that a module
    reads it where it is: `array` itself if it does, else a copy of any shape and dtype."""
    if is_aligned(array):
        return array
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def is_aligned(array: np.ndarray) -> bool:
    """Return whether an array's elements stand in order in memory that begins at a multiple of 64 bytes."""
    ordered = bool(array.flags.c_contiguous)
    return ordered and (array.size == 0 or array.__array_interface__["data"][0] % ALIGNMENT == 0)
