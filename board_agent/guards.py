"""Memory around operands that tells whether a kernel wrote, or used what it read, where nothing of it lies.

Every byte of a guard is 0xFF: a NaN of any floating-point type, -1 of any integer. What a kernel reads there spoils its
result, and what it writes there is found afterwards.
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
    """The bytes that lie behind a tensor of a device."""
    return np.full(GUARD_BYTES, _BYTE, np.uint8)


def is_whole(found: np.ndarray) -> bool:
    """Whether the bytes of a guard are as they were."""
    return bool((found == _BYTE).all())


def digest(array: np.ndarray) -> int:
    """A checksum of what an array holds."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class Guarded:
    """A copy of an array in host memory between two guards; `array` is the copy, aligned as TVM aligns."""

    def __init__(self, array: np.ndarray) -> None:
        self._memory = np.full(array.nbytes + 2 * (GUARD_BYTES + _ALIGN), _BYTE, np.uint8)
        start = GUARD_BYTES + -(self._memory.ctypes.data + GUARD_BYTES) % _ALIGN
        self._start, self._end = start, start + array.nbytes
        self.array: np.ndarray = self._memory[start : self._end].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def is_whole(self) -> bool:
        """Whether nobody wrote into the guards."""
        return is_whole(self._memory[: self._start]) and is_whole(self._memory[self._end :])
