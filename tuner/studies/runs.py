"""Measures placements of a network by building and running them. Start at `Runs`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import DevicePlan, FusedGraph, compile_module, host_of, lower_placed
from tuner.graph.layout.choice import choose
from tuning_db.store import Store

RUNS = 5


class Runs:
    """A callable that returns the seconds of an inference of a network for a placement: the index of each step's
    device.

    Every placement is built and run once, on random inputs, with the kernels that the database has. Raises
    DatabaseError if the store cannot be read.
    """

    def __init__(self, graph: FusedGraph, devices: Sequence[Device], store: Store, runs: int = RUNS) -> None:
        self._graph, self._devices, self._runs = graph, devices, runs
        self._device_plans = [
            DevicePlan(d.target, {w: c.config for w, c in choose((s.workload for s in graph.tuned), d, store).items()})
            for d in devices
        ]
        self._known: dict[tuple[int, ...], float] = {}

    def __call__(self, placement: Sequence[int]) -> float:
        """Return the seconds of a placement; infinity where a device cannot compute a step, or refuses a kernel or a
        tensor."""
        key = tuple(placement)
        if key not in self._known:
            try:
                self._known[key] = self._seconds(key)
            except (BadInput, RuntimeError):
                self._known[key] = math.inf
        return self._known[key]

    def _seconds(self, placement: tuple[int, ...]) -> float:
        placed = lower_placed(self._graph, self._device_plans, placement)
        host = host_of([device.target for device in self._devices])
        places = [device.tvm_device() for device in self._devices]
        machine = relax.VirtualMachine(compile_module(placed.module, host, len(places)), list(places))
        inputs = [_random(p.ty, places[d]) for p, d in zip(self._graph.parameters, placed.inputs, strict=True)]
        constants = zip(places, placed.constants, strict=True)
        inputs += [tvm.runtime.tensor(array, place) for place, own in constants for array in own]
        times = []
        for _ in range(self._runs + 1):
            started = time.perf_counter()
            machine["main"](*inputs)
            for place in places:
                place.sync()
            times.append(time.perf_counter() - started)
        return median(times[1:])  # the first warms up


def _random(ty: Any, place: tvm.runtime.Device) -> Any:
    """Return random numbers for a tensor of floats, zeros for other types (they may be indices)."""
    shape, dtype = [int(s) for s in ty.shape], str(ty.dtype)
    floats = dtype.startswith("float")
    values = np.random.default_rng(0).standard_normal(shape) if floats else np.zeros(shape)
    return tvm.runtime.tensor(values.astype(dtype), place)
