"""Keeping the threads of a module each on a core of its own while it runs. Start at `PoolThreads`.

Two threads of a pool on one core wait for each other. Workers are pinned for good: they do nothing else. The calling
thread belongs to the caller: it is pinned during a call and gets its own mask back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import tvm

from tuner.devices.parallel import Pool

_TASKS = Path("/proc/self/task")


class _Outside(threading.local):
    """The cores that a thread may be on outside its calls, which may be inside others."""

    def __init__(self) -> None:
        self.masks: list[set[int]] = []


# TVM's mode "threads share all the cores given": our own binding comes on top. Only the modes that take cores also
# raise TVM's limit on threads, which otherwise is half of the logical cores.
_SHARE_CORES = -3
_workers = threading.local()  # TVM keeps one pool per calling thread
_outside = _Outside()
_shared: dict[Pool, list[int]] = {}  # ours is one for all


class PoolThreads:
    """`with` it around every call, which may be inside another: the pool has `threads` threads, on the cores `cpus` if
    there are enough, and the calling thread is on the first. `pool` is None where TVM's is used."""

    def __init__(self, threads: int, cpus: Sequence[int], pin: bool, pool: Pool | None) -> None:
        self.threads = threads
        self._pool = pool
        self._cpus = list(cpus[:threads])
        self._pin = pin and threads > 1 and len(self._cpus) == threads and hasattr(os, "sched_setaffinity")

    def start(self) -> None:
        """Start the calling thread's pool at its size; afterwards its workers are pinned. No kernel runs here: threads
        that a device's driver starts are not the pool's."""
        before = _tasks()
        if self._pool is not None:
            self._pool.threads(self.threads)
            started = _shared.setdefault(self._pool, [])
            started += sorted(_tasks() - before)
        else:
            started = self._start_tvms(before)
        if self._pin:
            for cpu, tid in zip(self._cpus[1:], started, strict=False):
                os.sched_setaffinity(tid, {cpu})

    def _start_tvms(self, before: set[int]) -> list[int]:
        """Size and start TVM's pool of the calling thread; all its workers."""
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
