"""Branchy networks that are small, and running them in stages, undisturbed or with queues that are held up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import tirx as T
from tvm.target import Target

from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device, opencl
from tuner.devices.parallel.stage import STAGE
from tuner.graph import DevicePlan, FusedGraph, Placed, compile_module, host_of, lower_placed
from tuner.stages import Schedule, Stage
from tuner.stages.calls import Calls
from tuner.stages.host import Host
from tuner.stages.merge import Merging
from tuner.stages.rewrite import staged

LENGTH = 4096
RUNS = int(os.environ.get("EDGETUNE_STAGE_RUNS", "30"))  # of networks whose queues, or kernels, are held up


def branches(folder: Path, size: int = 12, batch: int = 1) -> FusedGraph:
    """Two blocks of three branches, one of them long, that are joined; values of equal sizes, so that memory planning
    has something to reuse."""
    net = Net()
    x = net.op("Relu", net.input(batch, 16, size, size))
    for _ in range(2):
        width = 16 if x.endswith("_0") else 48
        one = net.op("Relu", net.conv(x, (width, 16), 1))
        two = net.op("Relu", net.conv(x, (width, 16), 1))
        for _ in range(3):
            two = net.op("Relu", net.conv(two, (16, 16), 3, pads=[1] * 4))
        three = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        three = net.op("Relu", net.conv(three, (width, 16), 1))
        three = net.op("Relu", net.conv(three, (16, 16), 3, pads=[1] * 4))
        x = net.op("Concat", one, two, three, axis=1)
    return net.graph(folder, net.op("Flatten", net.op("GlobalAveragePool", x)), x)


def all_merged(merging: Merging) -> Schedule:
    """One call after the other, but all that may be merged are, where the first of them would be computed."""
    stages, done = [], set[int]()
    for i, kind in enumerate(merging.kinds):
        if i not in done:
            same = [i] if kind is None else [j for j, other in enumerate(merging.kinds) if other == kind]
            stages.append(Stage(tuple((j,) for j in same), len(same) > 1))
            done.update(same)
    return tuple(stages)


def host(threads: int) -> Device:
    """The CPU with so many threads, however many cores there are: nothing is timed for its own sake."""
    return replace(open_device("cpu", 1), threads=threads)


def with_threads(schedule: Sequence[Stage], threads: int) -> Schedule:
    """Its stages of several groups with threads for each, by how many kernels they have."""
    return tuple(
        stage
        if stage.merged or len(stage.groups) == 1
        else stage.divided([len(group) for group in stage.groups], threads)
        for stage in schedule
    )


def lowered(graph: FusedGraph, device: Device) -> Placed:
    return lower_placed(graph, [DevicePlan(device.target, {})], [0] * len(graph.steps))


class Machine:
    """A network on its device, as it is or in stages."""

    def __init__(
        self,
        placed: Placed,
        device: Device,
        schedule: Sequence[Stage] | None = None,
        keep: bool = True,
        around: Callable[[Callable[..., None]], Callable[..., None]] | None = None,
    ) -> None:
        """`around`: makes of the host's function that runs stages the one that the network calls."""
        if schedule is not None:
            calls = Calls.of(placed)
            placed = staged(placed, calls, schedule, keep=keep, merging=Merging(placed, calls, device))
        self.executable = compile_module(placed.module, host_of([device.target]), 1)
        self._device = device.tvm_device()
        self._host = Host(device.threads) if device.is_host else None
        if around is not None:
            tvm_ffi.register_global_func(STAGE, around(tvm_ffi.get_global_func(STAGE)), override=True)
        load = relax.VirtualMachine if self._host is None else lambda program, _: self._host.machine(program)
        self._machine = load(self.executable, self._device)
        self._constants = [tvm.runtime.tensor(array, self._device) for array in placed.constants[0]]

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        given = [tvm.runtime.tensor(array, self._device) for array in inputs]
        with nullcontext() if self._host is None else self._host.computing():
            return [result.numpy() for result in self._machine["main"](*given, *self._constants)]

    def run_delayed(self, delays: Delays, *inputs: np.ndarray) -> list[np.ndarray]:
        """With a wait on the current stream before some kernels."""
        return self.run_watched(delays.instrument, *inputs)

    def run_watched(self, instrument: Callable[..., int], *inputs: np.ndarray) -> list[np.ndarray]:
        """With an instrument of the virtual machine's."""
        self._machine.set_instrument(instrument)
        try:
            return self.run(*inputs)
        except BaseException:
            if self._host is None:
                opencl.leave_stage()
            raise
        finally:
            self._machine.set_instrument(None)


class Delays:
    """Holds up queues: before a call it launches, now and then, a kernel that only takes time, on the stream that the
    call will be launched on."""

    def __init__(self, device: Device, seed: int, share: float = 0.3) -> None:
        self._random, self._share = Random(seed), share
        dev = device.tvm_device()
        host = host_of([device.target])
        self._function = tvm.tirx.build(tvm.IRModule({"main": _slow()}), target=_with_host(device.target, host))["main"]
        self._data = [tvm.runtime.tensor(np.ones(LENGTH, "float32"), dev) for _ in range(2)]
        self.count = 0

    def instrument(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        own = name.startswith(("vm.builtin.", "edgetune."))
        if before and not own and self._random.random() < self._share:
            self.count += 1
            for _ in range(self._random.randint(1, 4)):
                self._function(*self._data)
        return 0


def _with_host(target: Target, host: Target) -> Target:
    return target.with_host(host)


def _slow() -> tvm.tirx.PrimFunc:
    """Some hundred microseconds of one work-item."""

    @T.prim_func
    def slow(A: T.Buffer((LENGTH,), "float32"), B: T.Buffer((LENGTH,), "float32")) -> None:
        with T.launch_thread("blockIdx.x", 1) as bx:
            tx = T.launch_thread("threadIdx.x", 1)
            held = T.alloc_buffer((1,), "float32", scope="local")
            for i in range(LENGTH):
                held[0] = A[i]
                for k in range(40):
                    held[0] = held[0] * T.float32(0.999) + T.float32(0.001) * A[(i + k) % LENGTH]
                B[i + bx + tx] = held[0]

    return slow.with_attr("global_symbol", "main")
