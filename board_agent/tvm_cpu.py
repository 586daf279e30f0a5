"""This module runs kernels on the board's CPU with only TVM's runtime library: start at `TvmCpu`.

No compiler is needed or loaded here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Callable, Sequence

os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")  # TVM reads it when it is imported

import numpy as np
import tvm

from board_agent.backend import Backend, Unusable
from board_agent.guards import Guarded
from board_agent.memory import cold_copies
from board_agent.pool import Pool
from board_agent.topology import pin_threads, usable_cpus

ENTRY = "main"  # the function of every library that is built for measuring


class Copy:
    """A copy of a weight, of which a candidate gets several (see `Backend.cold`)."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Tensor(Copy):
    """A TVM tensor that refers to an array between two guards."""

    def __init__(self, guarded: Guarded) -> None:
        super().__init__(tvm.runtime.from_dlpack(guarded.array))
        self.guarded = guarded


class TvmCpu(Backend):
    """A backend that runs kernels on the processors `cpus`, with one thread on each. Its tensors are TVM's."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = cpus
        self._pool: Pool | None = None

    def tensor(self, array: np.ndarray) -> Tensor:
        return Tensor(Guarded(array))

    def array(self, tensor: Tensor) -> np.ndarray:
        return tensor.guarded.array

    def is_whole(self, tensor: Tensor) -> bool:
        return tensor.guarded.is_whole()

    def fill(self, tensor: Tensor, value: float) -> None:
        tensor.guarded.array.fill(value)

    def cold(self, array: np.ndarray, cold_bytes: int) -> list[Any]:
        return [Copy(tvm.runtime.from_dlpack(copy)) for copy in cold_copies(array, cold_bytes)]

    def load(self, path: Path) -> Callable[..., Any]:
        module = tvm.runtime.load_module(str(path))
        if self._pool is not None:
            self._pool.serve(path)
        return module[ENTRY]

    def use_pool(self, path: Path) -> None:
        try:
            self._pool = Pool(path)
        except OSError as error:  # the pool was compiled for another system, so kernels use TVM's
            raise Unusable(str(error)) from error
        self._pool.threads(len(self._cpus))

    def ready(self) -> None:
        pin_threads(self._cpus)

    def call(self, function: Callable[..., Any], arguments: Sequence[Tensor | Copy]) -> float:
        given = [argument.tensor for argument in arguments]
        start = time.perf_counter()
        function(*given)
        return time.perf_counter() - start


def open_backend(_number: int, threads: int, cpus: Sequence[int] | None) -> TvmCpu:
    """Make the backend of the CPU with `threads` threads, on the given processors or the first usable ones."""
    found = list(usable_cpus()[:threads] if cpus is None else cpus)
    os.environ["TVM_NUM_THREADS"], os.environ["TVM_BIND_THREADS"] = str(threads), "0"
    return TvmCpu(found)
