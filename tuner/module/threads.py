"""Keeping TVM's threads each on a core of its own while a module runs. Start at `PoolThreads`.

Two of TVM's threads on one core wait for each other for seconds. Its workers are pinned for good: they do nothing
else. The calling thread belongs to the caller: it is pinned during a call and gets its own mask back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tvm

_TASKS = Path("/proc/self/task")
# TVM's mode "threads share all the cores given": our own binding comes on top. Only the modes that take cores also
# raise TVM's limit on threads, which otherwise is half of the logical cores.
_SHARE_CORES = -3
_workers = threading.local()  # TVM keeps one pool per calling thread


class PoolThreads:
    """`calling()` wraps every call: the pool has `threads` threads, on the cores `cpus` if there are enough."""

    def __init__(self, threads: int, cpus: Sequence[int], pin: bool) -> None:
        self.threads = threads
        self._cpus = list(cpus[:threads])
        self._pin = pin and threads > 1 and len(self._cpus) == threads and hasattr(os, "sched_setaffinity")

    def start(self) -> None:
        """Size the calling thread's pool and start it; afterwards its workers are pinned. No kernel runs here: threads
        that a device's driver starts are not the pool's."""
        before, mask = _tasks(), os.sched_getaffinity(0)
        if "TVM_NUM_THREADS" not in os.environ:
            tvm.get_global_func("runtime.config_threadpool")(
                _SHARE_CORES, self.threads, [str(cpu) for cpu in self._cpus]
            )
        tvm.get_global_func("runtime.NumThreads")()  # starts the pool
        os.sched_setaffinity(0, mask)  # TVM has bound the calling thread to one core
        started = sorted(_tasks() - before)
        _workers.tids = [*getattr(_workers, "tids", []), *started]
        if self._pin:
            for cpu, tid in zip(self._cpus[1:], _workers.tids, strict=False):
                os.sched_setaffinity(tid, {cpu})

    @contextmanager
    def calling(self) -> Iterator[None]:
        """The calling thread on the first core, for the time of a call."""
        if not self._pin:
            yield
            return
        mask = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._cpus[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, mask)


def _tasks() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)} if _TASKS.is_dir() else set()
