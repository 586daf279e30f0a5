"""Measures the peaks that shares of peak refer to, one for each precision. Start at `peak_of`.

Kernels that do nothing but multiply-adds in vector registers are timed: fused ones of float32 and float16, and for
integers the instruction that our kernels multiply by (`integer_peak`). A peak is what this machine does now, at its
present clock, not a figure from a data sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from templates.cpu.isa import HALF, computes_in
from templates.gpu import opencl_text  # noqa: F401  registers what OpenCL kernels are rewritten by
from templates.gpu.limits import gpu_limits_of
from templates.integers import INTEGERS
from tuner.devices.base import Device
from tuner.devices.integer_peak import integer_multipliers

_CHAINS = 12  # independent accumulators: enough to hide the latency on any of our cores, and they fit into registers
_LANES = (8, 16)  # for AVX2 and NEON, and for AVX-512; the better one counts
_STEPS = 100_000
_REPEATS = 10
# Items of a group and lanes on an OpenCL or CUDA device. CPU runtimes want one item with wide vectors; the best counts.
_GROUPS = ((1, 8), (1, 16), (64, 4), (256, 4))
_GROUPS_PER_UNIT = 8
# Multiply-adds of each chain, of all items of a group together. They take so long that a launch does not count.
_GROUP_STEPS = 2_560_000


class PeakKernel(Protocol):
    """A kernel whose operations a second are a peak. Each call does `flop` operations on its `operands`."""

    @property
    def flop(self) -> float: ...

    def prim_func(self) -> tirx.PrimFunc: ...

    def operands(self) -> Sequence[np.ndarray]: ...


@dataclass(frozen=True)
class Multiplier:
    """A kernel that does nothing but fused multiply-adds of a `dtype`. `shape` is that of its two operands (start,
    out): items, chains and lanes. `steps` is how many multiply-adds each of its chains has."""

    steps: int
    shape: tuple[int, int, int]
    func: Callable[..., tirx.PrimFunc]
    dtype: str = "float32"

    @property
    def flop(self) -> float:
        return 2.0 * self.steps * prod(self.shape)

    def prim_func(self) -> tirx.PrimFunc:
        return self.func(self.steps, *self.shape, dtype=self.dtype)

    def operands(self) -> Sequence[np.ndarray]:
        start = np.random.default_rng(0).random(self.shape).astype(self.dtype)
        return start, np.zeros_like(start)


def peak_of(device: Device, dtype: str) -> float | None:
    """Return the operations a second of all threads of a CPU, or of a whole GPU, in workloads of a `dtype`: the best of
    several runs. It is None if the device has no vector instruction for it that kernels of ours use."""
    if dtype == INTEGERS:
        return max((_rate(device, multiplier) for multiplier in integer_multipliers(device)), default=None)
    return fma_peak(device, dtype) if dtype == "float32" or (dtype == HALF and _has_halves(device)) else None


def fma_peak(device: Device, dtype: str = "float32") -> float:
    """Return the floating-point operations a second of a device that computes in a `dtype`."""
    return max(_rate(device, multiplier) for multiplier in multipliers(device, dtype))


def _has_halves(device: Device) -> bool:
    return computes_in(device.target, HALF) if device.is_host else gpu_limits_of(device.target).fp16


def fma_kernel(device: Device, seconds: float) -> Multiplier:
    """Return the fastest of the device's kernels of multiply-adds, so long that it takes about `seconds`. It is to be
    timed beside other kernels, where a machine's rate changes with its neighbours."""
    rates = {multiplier: _rate(device, multiplier) for multiplier in multipliers(device)}
    best = max(rates, key=rates.__getitem__)
    return replace(best, steps=max(1, round(best.steps * seconds * rates[best] / best.flop)))


def multipliers(device: Device, dtype: str = "float32") -> list[Multiplier]:
    """Return kernels of fused multiply-adds for a device. The fastest of them reaches its peak."""
    if device.is_host:
        return [Multiplier(_STEPS, (device.threads, _CHAINS, lanes), _kernel, dtype) for lanes in _LANES]
    groups = int(device.key.attrs["compute_units"]) * _GROUPS_PER_UNIT
    limits = gpu_limits_of(device.target)
    return [
        Multiplier(_GROUP_STEPS // items, (groups * items, _CHAINS, lanes), partial(_gpu_kernel, groups), dtype)
        for items, lanes in _GROUPS
        if items <= limits.max_threads and lanes <= limits.max_vector
    ]


def _rate(device: Device, kernel: PeakKernel) -> float:
    module = tvm.compile(kernel.prim_func(), target=device.target)
    place = device.tvm_device()
    operands = [tvm.runtime.tensor(array, place) for array in kernel.operands()]
    timed = module.mod.time_evaluator("main", place, number=1, repeat=_REPEATS)(*operands)
    return kernel.flop / min(timed.results)


def _kernel(steps: int, threads: int, chains: int, lanes: int, *, dtype: str) -> tirx.PrimFunc:
    factor, summand = tirx.const(0.999, dtype), tirx.const(0.001, dtype)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(  # type: ignore[no-untyped-def]
        start: T.Buffer((threads, chains, lanes), dtype),  # type: ignore[valid-type]
        out: T.Buffer((threads, chains, lanes), dtype),  # type: ignore[valid-type]
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for t in T.parallel(threads):
            with T.sblock("thread"):
                acc = T.sblock_alloc_buffer((chains, lanes), dtype, scope="local")
                for c in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        acc[c, v] = start[t, c, v]
                for _step in range(steps):
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            acc[c, v] = acc[c, v] * factor + summand
                for c in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        out[t, c, v] = acc[c, v]

    return main


def _gpu_kernel(groups: int, steps: int, items: int, chains: int, lanes: int, *, dtype: str) -> tirx.PrimFunc:
    """Return a kernel with `items` items in all `groups` together, each with `steps` multiply-adds in each of its
    chains."""
    size = items // groups
    factor, summand = tirx.const(0.999, dtype), tirx.const(0.001, dtype)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(  # type: ignore[no-untyped-def]
        start: T.Buffer((items, chains, lanes), dtype),  # type: ignore[valid-type]
        out: T.Buffer((items, chains, lanes), dtype),  # type: ignore[valid-type]
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for g in T.thread_binding(groups, thread="blockIdx.x"):
            for i in T.thread_binding(size, thread="threadIdx.x"):
                with T.sblock("item"):
                    acc = T.sblock_alloc_buffer((chains, lanes), dtype, scope="local")
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            acc[c, v] = start[g * size + i, c, v]
                    for _step in range(steps):
                        for c in T.unroll(chains):
                            for v in T.vectorized(lanes):
                                acc[c, v] = acc[c, v] * factor + summand
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            out[g * size + i, c, v] = acc[c, v]

    return main
