"""Measures the peak that shares of peak refer to: `fma_peak` times a kernel that does nothing but fused multiply-adds
in vector registers. The peak is what this machine does now, at its present clock, not a figure from a data sheet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from templates.gpu import opencl_text  # noqa: F401  registers what OpenCL kernels are rewritten by
from templates.gpu.limits import gpu_limits_of
from tuner.devices.base import Device

_CHAINS = 12  # independent accumulators: enough to hide the latency on any of our cores, and they fit into registers
_LANES = (8, 16)  # for AVX2 and NEON, and for AVX-512; the better one counts
_STEPS = 100_000
_REPEATS = 10
# Items of a group and lanes on an OpenCL or CUDA device. CPU runtimes want one item with wide vectors; the best counts.
_GROUPS = ((1, 8), (1, 16), (64, 4), (256, 4))
_GROUPS_PER_UNIT = 8
# Multiply-adds of each chain, of all items of a group together. They take so long that a launch does not count.
_GROUP_STEPS = 2_560_000


@dataclass(frozen=True)
class Multiplier:
    """A kernel that does nothing but multiply-adds. `shape` is that of its two operands (start, out): items, chains and
    lanes. `steps` is how many multiply-adds each of its chains has."""

    steps: int
    shape: tuple[int, int, int]
    func: Callable[..., tirx.PrimFunc]

    @property
    def flop(self) -> float:
        return 2.0 * self.steps * prod(self.shape)

    def prim_func(self) -> tirx.PrimFunc:
        return self.func(self.steps, *self.shape)


def fma_peak(device: Device) -> float:
    """Return the floating-point operations a second, float32, of all threads of a CPU or a whole GPU: the best of
    several runs."""
    return max(_rate(device, multiplier) for multiplier in multipliers(device))


def fma_kernel(device: Device, seconds: float) -> Multiplier:
    """Return the fastest of the device's kernels of multiply-adds, so long that it takes about `seconds`. It is to be
    timed beside other kernels, where a machine's rate changes with its neighbours."""
    rates = {multiplier: _rate(device, multiplier) for multiplier in multipliers(device)}
    best = max(rates, key=rates.__getitem__)
    return replace(best, steps=max(1, round(best.steps * seconds * rates[best] / best.flop)))


def multipliers(device: Device) -> list[Multiplier]:
    """Return kernels of multiply-adds for a device. The fastest of them reaches its peak."""
    if device.is_host:
        return [Multiplier(_STEPS, (device.threads, _CHAINS, lanes), _kernel) for lanes in _LANES]
    groups = int(device.key.attrs["compute_units"]) * _GROUPS_PER_UNIT
    limits = gpu_limits_of(device.target)
    return [
        Multiplier(_GROUP_STEPS // items, (groups * items, _CHAINS, lanes), partial(_gpu_kernel, groups))
        for items, lanes in _GROUPS
        if items <= limits.max_threads and lanes <= limits.max_vector
    ]


def _rate(device: Device, multiplier: Multiplier) -> float:
    module = tvm.compile(multiplier.prim_func(), target=device.target)
    place = device.tvm_device()
    start = tvm.runtime.tensor(np.random.default_rng(0).random(multiplier.shape, dtype=np.float32), place)
    out = tvm.runtime.empty(multiplier.shape, "float32", place)
    timed = module.mod.time_evaluator("main", place, number=1, repeat=_REPEATS)(start, out)
    return multiplier.flop / min(timed.results)


def _kernel(steps: int, threads: int, chains: int, lanes: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(  # type: ignore[no-untyped-def]
        start: T.Buffer((threads, chains, lanes), "float32"),  # type: ignore[valid-type]
        out: T.Buffer((threads, chains, lanes), "float32"),  # type: ignore[valid-type]
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for t in T.parallel(threads):
            with T.sblock("thread"):
                acc = T.sblock_alloc_buffer((chains, lanes), "float32", scope="local")
                for c in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        acc[c, v] = start[t, c, v]
                for _step in range(steps):
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            acc[c, v] = acc[c, v] * T.float32(0.999) + T.float32(0.001)
                for c in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        out[t, c, v] = acc[c, v]

    return main


def _gpu_kernel(groups: int, steps: int, items: int, chains: int, lanes: int) -> tirx.PrimFunc:
    """Return a kernel with `items` items in all `groups` together, each with `steps` multiply-adds in each of its
    chains."""
    size = items // groups

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(  # type: ignore[no-untyped-def]
        start: T.Buffer((items, chains, lanes), "float32"),  # type: ignore[valid-type]
        out: T.Buffer((items, chains, lanes), "float32"),  # type: ignore[valid-type]
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for g in T.thread_binding(groups, thread="blockIdx.x"):
            for i in T.thread_binding(size, thread="threadIdx.x"):
                with T.sblock("item"):
                    acc = T.sblock_alloc_buffer((chains, lanes), "float32", scope="local")
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            acc[c, v] = start[g * size + i, c, v]
                    for _step in range(steps):
                        for c in T.unroll(chains):
                            for v in T.vectorized(lanes):
                                acc[c, v] = acc[c, v] * T.float32(0.999) + T.float32(0.001)
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            out[g * size + i, c, v] = acc[c, v]

    return main
