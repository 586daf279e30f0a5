"""The peak that shares of peak refer to: `fma_peak` times a kernel that does nothing but fused multiply-adds in vector
registers. It is what this machine does now, at its present clock, not a figure from a data sheet."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tuner.devices import Device

_CHAINS = 12  # independent accumulators: latency times throughput of any of our cores, and they fit into registers
_LANES = (8, 16)  # AVX2 and NEON; AVX-512. The better one counts.
_STEPS = 100_000
_REPEATS = 10


def fma_peak(device: Device) -> float:
    """Floating-point operations a second, float32, on all threads of a CPU; the best of several runs."""
    return max(_rate(device, lanes) for lanes in _LANES)


def _rate(device: Device, lanes: int) -> float:
    shape = (device.threads, _CHAINS, lanes)
    module = tvm.compile(_kernel(*shape), target=device.target)
    start = tvm.runtime.tensor(np.random.default_rng(0).random(shape, dtype=np.float32))
    out = tvm.runtime.empty(shape, "float32")
    timed = module.mod.time_evaluator("main", device.tvm_device(), number=1, repeat=_REPEATS)(start, out)
    return 2.0 * _STEPS * np.prod(shape) / min(timed.results)


def _kernel(threads: int, chains: int, lanes: int) -> tirx.PrimFunc:
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
                for _step in range(_STEPS):
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            acc[c, v] = acc[c, v] * T.float32(0.999) + T.float32(0.001)
                for c in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        out[t, c, v] = acc[c, v]

    return main
