"""Times what no template computes: a step or a transform by itself, or a copy between devices. Start at `time_module`.

Caches are warm: what reads a value in a network mostly finds it in a cache, where its producer left it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import IRModule

from tuner.devices import Device
from tuner.devices.stopwatch import COPY, Stopwatch
from tuner.graph import compile_module, host_of

RUNS = 15


def computes(module: IRModule) -> bool:
    """Tell whether a module has a function to run. A transform or a step may only be another view of the
    same memory."""
    return any(isinstance(f, tirx.PrimFunc) for f in module.functions.values())


def time_module(module: IRModule, device: Device, runs: int = RUNS, seed: int = 0) -> tuple[float, ...]:
    """Return the seconds of all functions of a finished module's "main" together, in each of `runs` inferences on
    random values.

    Raises RuntimeError if the device refuses them.
    """
    host = host_of([device.target])
    target = device.target if device.is_host else device.target.with_host(host)
    for name, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            module.update_func(name, function.with_attr("target", target))
    place, rng = device.tvm_device(), np.random.default_rng(seed)
    machine = relax.VirtualMachine(compile_module(module, host, 1), [place])
    arguments = [_values(p.ty, place, rng) for p in module["main"].params]
    machine["main"](*arguments)
    stopwatch = Stopwatch(awake=True)
    machine.set_instrument(stopwatch.instrument)
    found = []
    for _ in range(runs):
        stopwatch.restart()
        machine["main"](*arguments)
        found.append(sum(stopwatch.last))
    return tuple(found)


def time_copy(source: Device, target: Device, count: int, runs: int = RUNS) -> tuple[float, ...]:
    """Return the seconds of each of `runs` copies of `count` bytes. The queues of both devices are empty before and
    after."""
    here, there = source.tvm_device(), target.tvm_device()
    data, into = (tvm.runtime.empty((count,), "uint8", place) for place in (here, there))
    copy, found = tvm.get_global_func(COPY), []
    for _ in range(runs + 1):
        started = time.perf_counter()
        copy(data, into)
        here.sync()
        there.sync()
        found.append(time.perf_counter() - started)
    return tuple(found[1:])


def fitted_link(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit a link's latency and seconds per byte by the least squares of relative errors. Neither is negative."""
    rows = np.array([[1 / s, n / s] for n, s in zip(sizes, seconds, strict=True)])
    (latency, rate), *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
    if rate < 0:
        return float(np.median(seconds)), 0.0
    if latency < 0:
        return 0.0, float(np.median(np.array(seconds) / np.array(sizes)))
    return float(latency), float(rate)


def _values(ty: Any, place: tvm.runtime.Device, rng: np.random.Generator) -> Any:
    """Return random numbers for a tensor of floats, and zeros for other tensors (they may be indices)."""
    if isinstance(ty, relax.TupleType):
        return tvm.runtime.convert([_values(field, place, rng) for field in ty.fields])
    shape, dtype = [int(s) for s in ty.shape], str(ty.dtype)
    values = rng.standard_normal(shape).astype(dtype) if dtype.startswith("float") else np.zeros(shape, dtype)
    return tvm.runtime.tensor(values, place)
