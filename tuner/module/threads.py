"""Keep each thread of a module on its own core while the module runs. Start at `PoolThreads`.

Two threads of a pool that share a core wait for each other. Worker threads are pinned for good, since they do nothing
else. The calling thread belongs to the caller, so it is pinned only during a call and gets its own affinity mask back
afterwards.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import tvm

from tuner.devices.parallel import Pool

_TASKS = Path("/proc/self/task")


class _Outside(threading.local):
    """The affinity masks that a thread had before its calls. They form a stack, because calls may be nested."""

    def __init__(self) -> None:
        self.masks: list[set[int]] = []


# TVM's mode in which all threads share all the cores given; our own pinning is added on top. Only the modes that take a
# list of cores also raise TVM's limit on threads, which otherwise is half of the logical cores.
_SHARE_CORES = -3
_workers = threading.local()  # TVM keeps one pool per calling thread
_outside = _Outside()


class PoolThreads:
    """A context manager that encloses every call of a module; calls may be nested. The pool has `threads` threads. If
    `pin` is set and `cpus` has enough cores, each thread is kept on one of these cores, the calling thread on the
    first. `pool` is None where TVM's own pool is used."""

    def __init__(self, threads: int, cpus: Sequence[int], pin: bool, pool: Pool | None) -> None:
        self.threads = threads
        self._pool = pool
        self._cpus = list(cpus[:threads])
        self._pin = pin and threads > 1 and len(self._cpus) == threads and hasattr(os, "sched_setaffinity")

    def start(self) -> None:
        """Start the calling thread's pool at its size, with the pool's workers pinned."""
        if self._pool is not None:
            if self._pin:
                self._pool.keep(self._cpus)
            self._pool.threads(self.threads)
            return
        started = self._start_tvms(_tasks())
        if self._pin:
            for cpu, tid in zip(self._cpus[1:], started, strict=False):
                with contextlib.suppress(ProcessLookupError):  # a thread of another library, which has ended
                    os.sched_setaffinity(tid, {cpu})

    def _start_tvms(self, before: set[int]) -> list[int]:
        """Set the size of TVM's pool for the calling thread, start the pool, and return the ids of all its workers:
        those threads that there were not `before`. No kernel runs here, so that threads which a device's driver starts
        are not taken for workers."""
        mask = os.sched_getaffinity(0)
        if "TVM_NUM_THREADS" not in os.environ:
            tvm.get_global_func("runtime.config_threadpool")(
                _SHARE_CORES, self.threads, [str(cpu) for cpu in self._cpus]
            )
        tvm.get_global_func("runtime.NumThreads")()  # starts the pool
        os.sched_setaffinity(0, mask)  # TVM has bound the calling thread to one core
        _workers.tids = [*getattr(_workers, "tids", []), *sorted(_tasks() - before)]
        return _workers.tids

    def __enter__(self) -> None:
        first = self._cpus[0] if self._pin else -1
        if self._pool is not None:
            self._pool.enter(self.threads, first)
        elif self._pin:
            _outside.masks.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {first})

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.leave()
        elif self._pin:
            os.sched_setaffinity(0, _outside.masks.pop())


def _tasks() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)} if _TASKS.is_dir() else set()
