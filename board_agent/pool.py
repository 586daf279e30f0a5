"""This module loads the thread pool that replaces TVM's for kernels: start at `Pool`.

The pool is a library that was compiled from tuner/devices/parallel.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path

_LAUNCHER = "__TVMBackendParallelLaunch"


class Pool:
    """A thread pool that is loaded into this process.

    Use `tuner.devices.parallel.open_pool`, because a process needs each library only once.
    """

    def __init__(self, library: Path) -> None:
        """Load the library. Raises OSError if that is not possible on this system."""
        self._library = ctypes.CDLL(str(library))
        self._launch = ctypes.cast(self._library.edgetune_launch, ctypes.c_void_p).value

    def threads(self, count: int) -> int:
        """Share the loops of the calling thread between `count` threads, itself included.

        Missing threads are started. Return how many there are now.
        """
        return int(self._library.edgetune_threads(count))

    def keep(self, cpus: Sequence[int]) -> None:
        """Keep each worker on a core of its own.

        The first of `cpus` is the caller's. A pool that was compiled before this function existed keeps none.
        """
        with contextlib.suppress(AttributeError):
            self._library.edgetune_keep((ctypes.c_int * len(cpus))(*cpus), len(cpus))

    def enter(self, count: int, cpu: int) -> None:
        """Begin a call of a network: share loops as `threads` does, and pin the calling thread to the core `cpu`.

        The thread stays there until `leave`; -1 does not pin it. Calls may be nested.
        """
        self._library.edgetune_enter(count, cpu)

    def leave(self) -> None:
        """End the call: the thread may run again on the cores that were allowed before."""
        self._library.edgetune_leave()

    @property
    def stage(self) -> int:
        """Return the address of the packed function that runs a stage of a network (stage.c).

        Raises AttributeError for a pool that was compiled before this function existed.
        """
        return int(ctypes.cast(self._library.edgetune_stage, ctypes.c_void_p).value or 0)

    def rest(self) -> None:
        """Let idle threads sleep until `rise` or the next loop. Otherwise they wait actively on their cores."""
        self._library.edgetune_rest()

    def rise(self) -> None:
        """Wake the threads that `rest` put to sleep."""
        self._library.edgetune_rise()

    @property
    def waiting(self) -> tuple[int, int]:
        """Return the addresses of the C functions behind `rest` and `rise`, for compiled code that calls them."""
        calls = self._library.edgetune_rest, self._library.edgetune_rise
        rest, rise = (ctypes.cast(call, ctypes.c_void_p).value or 0 for call in calls)
        return rest, rise

    def serve(self, library: Path | str) -> None:
        """Make the kernels of a library that TVM has loaded run their parallel loops in this pool."""
        loaded = ctypes.CDLL(str(library))
        with contextlib.suppress(ValueError):  # the library has no parallel loop
            ctypes.c_void_p.in_dll(loaded, _LAUNCHER).value = self._launch
        _ctypes.dlclose(loaded._handle)  # TVM keeps the library open as long as it is needed
