"""A `Pattern` is what a block of a task graph consists of. Start at `Pattern`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tuner.studies.simulator.library import Given

TICK = 1e-12  # seconds


class Pattern:
    """One block as `core.c` takes it, and the bytes that it needs of each memory. Dependencies are (role, task, role,
    task): role 0 is the block itself, and the other roles are the blocks that it connects."""

    def __init__(self, exe: np.ndarray, lane: np.ndarray, deps: np.ndarray, memory: np.ndarray) -> None:
        self.exe, self.lane = np.ascontiguousarray(exe, np.int64), np.ascontiguousarray(lane, np.int32)
        self.deps = np.ascontiguousarray(deps, np.int32)
        self.memory = np.rint(memory)  # whole bytes: adding and subtracting them stays exact
        arrays = [array.ctypes.data for array in (self.exe, self.lane, self.deps, self.memory)]
        self._given = Given(len(self.exe), len(self.deps), *arrays)
        self.address = ctypes.addressof(self._given)


def ticks(seconds: Sequence[float] | np.ndarray) -> np.ndarray:
    """Round seconds to whole ticks, at least one."""
    return np.maximum(np.rint(np.asarray(seconds, float) / TICK), 1).astype(np.int64)
