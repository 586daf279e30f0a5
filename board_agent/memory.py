"""This module allocates host memory in large pages, for data such as weights that every inference reads once."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

_LARGE_PAGE = 2 << 20  # bytes, on x86-64, and on aarch64 with pages of 4 KiB
_ALIGN = 64  # of every copy, like TVM's own allocations
_MADV_HUGEPAGE = 14  # Python's mmap has this constant only if the system had it when Python was built


def large_pages(nbytes: int) -> np.ndarray:
    """Allocate zero bytes that start on a large page, where the system supports large pages.

    A network's weights fill more small pages than a processor's TLB has entries for. In a virtual machine every miss
    walks two page tables. Raises MemoryError if the memory is not available.
    """
    try:
        memory = mmap.mmap(-1, nbytes + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes / 2**20:.0f} MiB of memory: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(_MADV_HUGEPAGE)
    found = np.frombuffer(memory, dtype=np.uint8)
    start = -found.ctypes.data % _LARGE_PAGE
    return found[start : start + nbytes]


def cold_copies(array: np.ndarray, cold_bytes: int) -> list[np.ndarray]:
    """Make copies of an array in one piece of memory that together exceed `cold_bytes`.

    Calls that read them in turn find them in main memory, not in a cache. The weights of a network are in the same
    state, because they were last used one inference ago.
    """
    stride = max(1, -(-array.nbytes // _ALIGN)) * _ALIGN
    count = max(1, -(-cold_bytes // max(1, array.nbytes)))
    rows = large_pages(count * stride).reshape(count, stride)  # a built module keeps its weights in large pages too
    rows[:, : array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [row[: array.nbytes].view(array.dtype).reshape(array.shape) for row in rows]
