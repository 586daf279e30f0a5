"""Timing what it takes to go on on another device, between kernels as in a module. Start at `Crossing`.

A copy by itself finds its bytes in the cache of the core that copies, and devices that are awake. Behind a kernel it
finds them where that kernel's threads left them, the next kernel has to fetch them from where the copy left them, and
threads that slept are woken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tvm
from tvm import te

from templates import default
from tuner.devices import Device, opencl, usable_cpus
from tuner.devices.parallel import Pool, open_pool, pool_library
from tuner.graph import COPY
from tuner.placement.pieces import RUNS, time_copy

_ROW = 8  # kernels that are timed together: what the first waits for is no time of a kernel
_FLOAT = 4


class Crossing:
    """From `source` to `target` and back with `count` bytes, between kernels that read and write as many, which it
    compiles; on the host, modules' threads run them.

    Raises RuntimeError if a device refuses its kernel.
    """

    def __init__(self, source: Device, target: Device, count: int) -> None:
        self._ends = source, target
        self._count = max(count // _FLOAT, 1) * _FLOAT
        self._places = [device.tvm_device() for device in self._ends]
        ones = np.ones(self._count // _FLOAT, np.float32)
        self._tensors = [[tvm.runtime.tensor(ones, place) for _ in range(2)] for place in self._places]
        self._pool, self._threads = _pool_of(source, target)
        self._kernels = [_kernel(device, self._count // _FLOAT, self._pool) for device in self._ends]
        self._copy = tvm.get_global_func(COPY)

    def seconds(self, runs: int = RUNS) -> tuple[float, ...]:
        """Of `runs` crossings from the source: its copy by itself, and half of what a round trip takes besides its two
        copies and its kernels, where that is anything. The fastest trip is compared with the fastest kernels, and so
        on: what else the machine does is on both sides."""
        with ExitStack() as stack:
            if self._pool is not None:
                self._pool.enter(self._threads, usable_cpus()[0])
                stack.callback(self._pool.leave)
            rows = [sorted(self._timed(partial(self._row, end), runs)) for end in range(2)]
            there, back = (sorted(time_copy(*ends, self._count, runs)) for ends in (self._ends, self._ends[::-1]))
            trips = sorted(self._timed(self._trip, runs))
        each = zip(trips, there, back, *rows, strict=True)
        return tuple(ours + max(trip - ours - its - sum(alone) / _ROW, 0.0) / 2 for trip, ours, its, *alone in each)

    def _timed(self, work: Callable[[], None], runs: int) -> list[float]:
        found = []
        for _ in range(runs + 1):
            started = time.perf_counter()
            work()
            for place in self._places:
                place.sync()
            found.append(time.perf_counter() - started)
        return found[1:]

    def _row(self, end: int) -> None:
        for _ in range(_ROW):
            self._kernels[end](*self._tensors[end])

    def _trip(self) -> None:
        (first, made), (received, result) = self._tensors
        self._kernels[0](first, made)
        self._copy(made, received)
        self._kernels[1](received, result)
        self._copy(result, first)


def time_crossing(source: Device, target: Device, count: int, runs: int = RUNS) -> tuple[float, ...]:
    """Seconds of crossings with so many bytes, see `Crossing.seconds`."""
    return Crossing(source, target, count).seconds(runs)


def _pool_of(*ends: Device) -> tuple[Pool | None, int]:
    """The threads that compute on the host, if a device is the host and can have ours: else TVM's do."""
    host = next((device for device in ends if device.is_host), None)
    library = None if host is None else pool_library()
    pool = None if library is None else open_pool(library)
    if host is None or pool is None:
        return None, 1
    threads = min(host.threads, len(usable_cpus()))
    pool.threads(threads)
    if any(device.key.kind == "opencl" for device in ends):
        opencl.set_host_threads(*pool.waiting)
    return pool, threads


def _kernel(device: Device, count: int, pool: Pool | None) -> Any:
    """Adds one to so many numbers."""
    read = te.placeholder((count,), "float32", "read")
    made = te.compute((count,), lambda i: read[i] + 1.0, name="made")
    func = default.schedule(te.create_prim_func([read, made]).with_attr("global_symbol", "main"), device.target)
    compiled = tvm.compile(func, target=device.target)
    if pool is None or not device.is_host:
        return compiled.mod["main"]
    with TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        compiled.export_library(str(library))
        loaded = tvm.runtime.load_module(str(library))
        pool.serve(library)
    return loaded["main"]
