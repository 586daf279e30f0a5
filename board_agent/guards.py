"""This module puts guards around operands, which show whether a kernel accessed memory outside its operands.

Every byte of a guard is 0xFF, which is a NaN of any floating-point type and -1 of any signed integer. A value that a
kernel reads from a guard spoils its result. A value that it writes there is found afterwards.
"""

from __future__ import annotations

import zlib

import numpy as np

GUARD_BYTES = 4096
WRITTEN_AROUND = "the memory around it was written to"
OVERWRITTEN = "it was overwritten"
_BYTE = 0xFF
_ALIGN = 64  # like TVM's own allocations


def guard() -> np.ndarray:
    """Return the bytes of the guard that is placed behind a tensor on a device."""
    return np.full(GUARD_BYTES, _BYTE, np.uint8)


def is_whole(found: np.ndarray) -> bool:
    """Tell whether the bytes of a guard are unchanged."""
    return bool((found == _BYTE).all())


def digest(array: np.ndarray) -> int:
    """Return a checksum of the content of an array."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class Guarded:
    """A copy of an array that lies between two guards in host memory. `array` is the copy, aligned as TVM aligns."""

    def __init__(self, array: np.ndarray) -> None:
        self._memory = np.full(array.nbytes + 2 * (GUARD_BYTES + _ALIGN), _BYTE, np.uint8)
        start = GUARD_BYTES + -(self._memory.ctypes.data + GUARD_BYTES) % _ALIGN
        self._start, self._end = start, start + array.nbytes
        self.array: np.ndarray = self._memory[start : self._end].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def is_whole(self) -> bool:
        """Tell whether both guards are unchanged."""
        return is_whole(self._memory[: self._start]) and is_whole(self._memory[self._end :])
