"""A thread pool for kernels, in place of TVM's: a library that was compiled from tuner/devices/parallel."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
from pathlib import Path

_LAUNCHER = "__TVMBackendParallelLaunch"


class Pool:
    """A loaded pool. Use `open_pool`: one process needs one of each."""

    def __init__(self, library: Path) -> None:
        """Raises OSError if it cannot be loaded here."""
        self._library = ctypes.CDLL(str(library))
        self._launch = ctypes.cast(self._library.edgetune_launch, ctypes.c_void_p).value

    def threads(self, count: int) -> int:
        """Share the calling thread's loops between `count` threads, itself included, starting those that are missing;
        how many there are now."""
        return int(self._library.edgetune_threads(count))

    def enter(self, count: int, cpu: int) -> None:
        """A call of a network begins: as `threads`, and the calling thread stays on the core `cpu` (-1: anywhere) until
        `leave`. Calls may be inside others."""
        self._library.edgetune_enter(count, cpu)

    def leave(self) -> None:
        """The call ends: the thread goes back to the cores that it was on."""
        self._library.edgetune_leave()

    @property
    def stage(self) -> int:
        """The address of the packed function that runs a stage of a network (stage.c). Raises AttributeError for a pool
        that was compiled before there was one."""
        return int(ctypes.cast(self._library.edgetune_stage, ctypes.c_void_p).value or 0)

    def rest(self) -> None:
        """Let idle threads sleep now, until `rise` or the next loop: they otherwise wait for it on their cores."""
        self._library.edgetune_rest()

    def rise(self) -> None:
        """Call resting threads back to their cores."""
        self._library.edgetune_rise()

    @property
    def waiting(self) -> tuple[int, int]:
        """The addresses of what `rest` and `rise` call, for others' code."""
        calls = self._library.edgetune_rest, self._library.edgetune_rise
        rest, rise = (ctypes.cast(call, ctypes.c_void_p).value or 0 for call in calls)
        return rest, rise

    def serve(self, library: Path | str) -> None:
        """Let the kernels of a library that TVM has loaded run their parallel loops here."""
        loaded = ctypes.CDLL(str(library))
        with contextlib.suppress(ValueError):  # it has no parallel loop
            ctypes.c_void_p.in_dll(loaded, _LAUNCHER).value = self._launch
        _ctypes.dlclose(loaded._handle)  # TVM keeps it open, as long as it is needed
