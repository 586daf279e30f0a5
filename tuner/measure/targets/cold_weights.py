"""Keeps a packed weight in so many copies that they exceed a cache, and hands them out in turn. Start at `ColdWeight`.

In a network a layer's weights were last read one inference ago and come from main memory. Calls that repeat on one copy
would time another kernel: one whose weights sit in the cache, where other algorithms win.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tvm

from board_agent.memory import cold_copies

_MOST_BUFFERS = 1024  # copies on a device: each is an object of the driver


class ColdWeight(Protocol):
    """A packed weight in copies that calls read in turn. `nbytes` is the size of all copies together."""

    @property
    def nbytes(self) -> int: ...

    def next(self) -> tvm.runtime.Tensor:
        """Return the copy that was not read for the longest time."""
        ...


class HostColdWeight:
    """A weight whose copies lie in one piece of host memory."""

    def __init__(self, packed: np.ndarray, cold_bytes: int) -> None:
        self._copies = cold_copies(packed, cold_bytes)
        self._tensors: dict[int, tvm.runtime.Tensor] = {}
        self._at = 0

    @property
    def nbytes(self) -> int:
        return sum(copy.nbytes for copy in self._copies)

    def next(self) -> tvm.runtime.Tensor:
        at = self._at
        self._at = (at + 1) % len(self._copies)
        if at not in self._tensors:
            self._tensors[at] = tvm.runtime.from_dlpack(self._copies[at])
        return self._tensors[at]


class DeviceColdWeight:
    """A weight whose copies lie in buffers of their own on a device, because kernels take whole buffers. At most
    _MOST_BUFFERS copies are made. A weight so small that these do not exceed the cache takes hardly any time to fetch
    anyway."""

    def __init__(self, packed: np.ndarray, cold_bytes: int, device: Any) -> None:
        copies = min(_MOST_BUFFERS, max(1, -(-cold_bytes // max(1, packed.nbytes))))
        self._tensors = [tvm.runtime.tensor(packed, device) for _ in range(copies)]
        self._packed_bytes = packed.nbytes
        self._at = 0

    @property
    def nbytes(self) -> int:
        return len(self._tensors) * self._packed_bytes

    def next(self) -> tvm.runtime.Tensor:
        self._at = (self._at + 1) % len(self._tensors)
        return self._tensors[self._at]
