"""Host memory in large pages, for what is read once from end to end in every inference."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import numpy as np
import tvm

_LARGE_PAGE = 2 << 20  # of x86-64, and of aarch64 with pages of 4 KiB
_ALIGN = 64  # like TVM's own allocations


def large_pages(nbytes: int) -> np.ndarray:
    """So many zero bytes, from the start of a large page, where the system has them. A network's weights are in more
    small pages than a processor keeps the addresses of, and in a virtual machine it looks up two tables for each that
    it does not know. Raises MemoryError if there is not so much."""
    try:
        memory = mmap.mmap(-1, nbytes + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes / 2**20:.0f} MiB of memory: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(memory, dtype=np.uint8)
    start = -found.ctypes.data % _LARGE_PAGE
    return found[start : start + nbytes]


def placed_in_large_pages(arrays: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
    """Copies of arrays, in one piece of memory."""
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
