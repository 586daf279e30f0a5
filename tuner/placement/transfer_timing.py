"""Times what it takes to continue on another device, between kernels as in a module. Start at `Crossings`.

A copy by itself finds its bytes in the cache of the core that copies, and finds devices awake. Behind a kernel it finds
the bytes where that kernel's threads left them, and it writes where nothing was written for long. The next kernel has
to fetch them from where the copy left them, and threads that slept are woken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from templates import default
from tuner.devices import Device, timed_call, usable_cpus
from tuner.devices.parallel import Pool, open_pool, pool_library
from tuner.graph import COPY
from tuner.placement.kernel_timing import time_copy

_ADDITIONS = 1 << 21  # that one kernel makes
ROUNDS, RUNS = 5, 6  # many, because a small difference between large times is measured
_TRIPS = 4  # round trips of a run: crossings differ much, and a network makes many in each inference
# Kernels that a device is given before the other continues, as in a network with many crossings, where their cost
# matters. Behind one kernel alone, threads hardly fall asleep (4 KiB: 36 us a trip). Behind more kernels, a trip is a
# small difference between large times, and threads sleep deeper than in such a network (behind 3: 66 us, behind 8: 84
# to 107 us).
_KERNELS = 3
_TOUCHED = 1 << 24  # bytes that a network touches until it writes a tensor again; fewer if tensors are small
_MOST_TENSORS = 64
_FLOAT = 4


class Crossing:
    """Goes from `source` to `target` and back with `count` bytes, between kernels that read and write as many. It
    compiles these kernels; on the host, the threads that modules use run them.

    Raises RuntimeError if a device refuses its kernel.
    """

    def __init__(self, source: Device, target: Device, count: int) -> None:
        self._ends = source, target
        self._count = max(count // _FLOAT, 1) * _FLOAT
        self._places = [device.tvm_device() for device in self._ends]
        ones = np.ones(self._count // _FLOAT, np.float32)
        several = min(max(_TOUCHED // self._count, 3), _MOST_TENSORS)
        self._tensors = [[tvm.runtime.tensor(ones, place) for _ in range(several)] for place in self._places]
        self._last = [0, 0]
        self._pool, self._threads = _pool_of(source, target)
        self._kernels = [_kernel(device, self._count // _FLOAT, self._pool) for device in self._ends]
        self._copy = tvm.get_global_func(COPY)

    def seconds(self, runs: int) -> tuple[float, ...]:
        """Return the seconds of a crossing from the source, for each of `runs` runs of several round trips.

        These are the seconds of a copy by itself, and half of what a trip takes besides its two copies and its kernels,
        if that is positive. The fastest run is compared with the fastest kernels, the second with the second, and so
        on. Runs and kernels take turns, so that other work on the machine slows both.
        """
        self._run()  # a driver's threads inherit the cores of the thread that starts them: here these are all cores
        with ExitStack() as stack:
            if self._pool is not None:
                self._pool.enter(self._threads, usable_cpus()[0])
                stack.callback(self._pool.leave)
            there, back = (sorted(time_copy(*ends, self._count, runs)) for ends in (self._ends, self._ends[::-1]))
            rounds = [(self._run(), self._alone(0), self._alone(1)) for _ in range(runs)]
        whole, *kernels = map(sorted, zip(*rounds, strict=True))
        each = zip(whole, there, back, *kernels, strict=True)
        spent = ((trip - sum(alone), ours, its) for trip, ours, its, *alone in each)
        return tuple(ours + max(rest / _TRIPS - ours - its, 0.0) / 2 for rest, ours, its in spent)

    def _alone(self, end: int) -> float:
        """Return the seconds of one end's kernels in a run, one behind another and without the other end's, as costs
        count them. Waking threads because a device was idle belongs to the crossing, and so only the trips contain it.
        """

        def launch() -> None:
            for _ in range(_TRIPS * _KERNELS):
                self._kernels[end](*self._next(end))

        if not self._ends[end].is_host:
            return timed_call(self._places[end], tvm.runtime.convert(launch))
        started = time.perf_counter()
        launch()
        return time.perf_counter() - started

    def _next(self, end: int) -> tuple[Any, Any]:
        """Return the tensor of a device that was written last, and the one that was not written for the
        longest time."""
        tensors = self._tensors[end]
        read, self._last[end] = self._last[end], (self._last[end] + 1) % len(tensors)
        return tensors[read], tensors[self._last[end]]

    def _run(self) -> float:
        started = time.perf_counter()
        for _ in range(_TRIPS):
            for end in (0, 1):
                for _ in range(_KERNELS):
                    read, made = self._next(end)
                    self._kernels[end](read, made)
                _, received = self._next(1 - end)
                self._copy(made, received)
        for place in self._places:
            place.sync()
        return time.perf_counter() - started


class Crossings:
    """Times crossings from one device to another with several numbers of bytes.

    Raises RuntimeError if a device refuses its kernel.
    """

    def __init__(self, source: Device, target: Device, sizes: Sequence[int]) -> None:
        self._each = {size: Crossing(source, target, size) for size in sizes}

    def seconds(self, rounds: int = ROUNDS, runs: int = RUNS) -> dict[int, tuple[float, ...]]:
        """Return the seconds for every size in all rounds. Sizes take turns in each round, so that other work on the
        machine slows all of them."""
        times: dict[int, list[float]] = {size: [] for size in self._each}
        for _ in range(rounds):
            for size, crossing in self._each.items():
                times[size] += crossing.seconds(runs)
        return {size: tuple(found) for size, found in times.items()}


def _pool_of(*ends: Device) -> tuple[Pool | None, int]:
    """Return the pool of threads that computes on the host, and how many threads there are. The pool is None where no
    device is the host or our pool cannot be loaded: TVM's threads compute then."""
    host = next((device for device in ends if device.is_host), None)
    library = None if host is None else pool_library()
    pool = None if library is None else open_pool(library)
    if host is None or pool is None:
        return None, 1
    threads = min(host.threads, len(usable_cpus()))
    pool.threads(threads)
    for device in ends:
        device.kind.share_cores(*pool.waiting)
    return pool, threads


def remaking(device: Device, count: int, additions: int = _ADDITIONS) -> tirx.PrimFunc:
    """Return a kernel that makes each of `count` numbers again, as a sum of equal parts, by `additions` or as many as
    there are numbers. It computes as much as a small convolution, so that it takes longer where a thread wakes late."""
    parts = max(additions // count, 1)
    read, part = te.placeholder((count,), "float32", "read"), te.reduce_axis((0, parts), "part")
    made = te.compute((count,), lambda i: te.sum(read[i] * (1.0 / parts), axis=part), name="made")
    return default.schedule(te.create_prim_func([read, made]).with_attr("global_symbol", "main"), device.target)


def _kernel(device: Device, count: int, pool: Pool | None) -> Any:
    """Compile the kernel `remaking`."""
    compiled = tvm.compile(remaking(device, count), target=device.target)
    if pool is None or not device.is_host:
        return compiled.mod["main"]
    with TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        compiled.export_library(str(library))
        loaded = tvm.runtime.load_module(str(library))
        pool.serve(library)
    return loaded["main"]
