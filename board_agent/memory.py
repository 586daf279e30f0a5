"""Host memory in large pages, for what is read once from end to end in every inference."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

_LARGE_PAGE = 2 << 20  # of x86-64, and of aarch64 with pages of 4 KiB
_ALIGN = 64  # of every copy, like TVM's own allocations
_MADV_HUGEPAGE = 14  # mmap has the name since Python 3.8, where the system had it when Python was built


def large_pages(nbytes: int) -> np.ndarray:
    """So many zero bytes, from the start of a large page, where the system has them. A network's weights are in more
    small pages than a processor keeps the addresses of, and in a virtual machine it looks up two tables for each that
    it does not know. Raises MemoryError if there is not so much."""
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
    """Copies of an array in one piece of memory, which together exceed `cold_bytes`: calls that read them in turn find
    them in main memory, as a network's weights are found, whose last use is an inference ago."""
    stride = max(1, -(-array.nbytes // _ALIGN)) * _ALIGN
    count = max(1, -(-cold_bytes // max(1, array.nbytes)))
    rows = large_pages(count * stride).reshape(count, stride)  # as a module's weights are
    rows[:, : array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [row[: array.nbytes].view(array.dtype).reshape(array.shape) for row in rows]
