"""Runs candidates on the host's CPU, on a device behind one of TVM's runtimes, or on a board. Start at
`open_executor`, which chooses by what the device's kind says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm

from board_agent.guards import GUARD_BYTES, OVERWRITTEN, WRITTEN_AROUND, Guarded, digest, guard, is_whole
from board_agent.timing import Repetition, burst, in_repeats, repeat, undisturbed
from tuner.devices import kind_of, pin_threads, runtime_device, timed_call
from tuner.devices.board import Standing
from tuner.devices.parallel import Pool, open_pool
from tuner.measure.codegen.toolchain import ENTRY
from tuner.measure.messages import ExecutorSettings
from tuner.measure.targets.cold_weights import ColdWeight, DeviceColdWeight, HostColdWeight
from tuner.measure.targets.operand import Fill, Operand
from tuner.measure.targets.remote import RemoteExecutor

Arguments = Callable[[], Sequence[Any]]


class Executor(Protocol):
    """Keeps tensors on a device, loads built candidates there and times their calls. Tensors are the device's own: only
    their shape and dtype can be read here. Arguments are given by a function, because the copies of a weight take
    turns.

    `throttled` says what slowed the device down during the last `repeat` or `compare`, as far as the device reports it;
    it is empty if nothing did. `condition` says in short what its clocks and temperature were around that. Raises
    DeviceLost where the device cannot be reached any more, and whatever the device raises.
    """

    throttled: str
    condition: str

    def alive(self) -> None:
        """Check that the device is still there, while there is nothing to do on it."""
        ...

    def operand(self, array: np.ndarray, *, written: bool = False) -> Operand:
        """Copy an array to the device. Kernels only read the copy, unless they may write it (`written`)."""
        ...

    def damage(self, operands: Sequence[Operand]) -> tuple[int, str] | None:
        """Return the index of an operand that is damaged and what happened to it, or None if none is. An operand is
        damaged if it was written to though kernels may only read it, or if the memory around it was written to. The
        damage stays: such operands are of no further use."""
        ...

    def array(self, tensor: Any) -> np.ndarray:
        """Return what a tensor holds now. The array must not be written to."""
        ...

    def cold(self, packed: np.ndarray, cold_bytes: int) -> ColdWeight:
        """Make copies of a packed weight that are together larger than `cold_bytes`."""
        ...

    def load(self, library: str) -> Any:
        """Load a built library and return its entry."""
        ...

    def ready(self) -> None:
        """Pin the threads to their cores. This is called when the first kernel has run, because the threads exist only
        then."""
        ...

    def call(self, function: Any, arguments: Arguments, fill: Fill = ()) -> None:
        """Call a function once, after each tensor of `fill` was set to its value everywhere."""
        ...

    def fill(self, fill: Fill) -> None:
        """Set each tensor to its value everywhere."""
        ...

    def repeat(
        self, function: Any, arguments: Arguments, repetition: Repetition, best_seconds: float | None, before: int = 0
    ) -> list[float]:
        """Time a function and return its seconds per call. The `before` calls that come first do not count."""
        ...

    def steady(self, function: Any, arguments: Arguments, repetition: Repetition, before: int) -> list[float]:
        """Time a kernel that is known to be good, as `repeat` does. It is never blamed if the device is lost."""
        ...

    def compare(self, runs: Sequence[tuple[Any, Arguments]], order: Sequence[int]) -> list[list[float]]:
        """Time several functions, which take turns in `order`. Return each one's seconds per call in each
        of its turns."""
        ...


class LocalExecutor:
    """Base class that the executors of this machine's devices share. `pool` runs a CPU's parallel loops; None leaves
    them to TVM."""

    pool: Pool | None = None
    throttled = condition = ""

    def __init__(self, device: Any) -> None:
        self.device = device

    def alive(self) -> None:
        """Do nothing: a device of this machine is there."""

    def operand(self, array: np.ndarray, *, written: bool = False) -> Operand:
        tensor, around = self.guarded(array)
        return Operand(tensor, around, None if written else digest(array))

    def damage(self, operands: Sequence[Operand]) -> tuple[int, str] | None:
        for number, operand in enumerate(operands):
            if not self.is_whole(operand.guard):
                return number, WRITTEN_AROUND
            if operand.digest is not None and digest(self.array(operand.tensor)) != operand.digest:
                return number, OVERWRITTEN
        return None

    def guarded(self, array: np.ndarray) -> tuple[tvm.runtime.Tensor, Any]:
        """Copy an array to the device, and return the copy and the guard around it."""
        raise NotImplementedError

    def is_whole(self, around: Any) -> bool:
        """Tell whether nothing was written into a guard. None stands for no guard."""
        raise NotImplementedError

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        raise NotImplementedError

    def load(self, library: str) -> Any:
        module = tvm.runtime.load_module(library)
        if self.pool is not None:
            self.pool.serve(library)
        return module[ENTRY]

    def ready(self) -> None:
        """Do nothing."""

    def fill(self, fill: Fill) -> None:
        raise NotImplementedError

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        """Call a function and return the seconds that it took on the device."""
        raise NotImplementedError

    def call(self, function: Any, arguments: Arguments, fill: Fill = ()) -> None:
        self.fill(fill)
        self.seconds(function, *arguments())

    def repeat(
        self, function: Any, arguments: Arguments, repetition: Repetition, best_seconds: float | None, before: int = 0
    ) -> list[float]:
        run = self._runs(function, arguments)
        for _ in range(before):
            run()
        return in_repeats(repeat(run, repetition, best_seconds))

    def steady(self, function: Any, arguments: Arguments, repetition: Repetition, before: int) -> list[float]:
        return self.repeat(function, arguments, repetition, None, before)

    def compare(self, runs: Sequence[tuple[Any, Arguments]], order: Sequence[int]) -> list[list[float]]:
        called = [self._runs(function, arguments) for function, arguments in runs]
        times: list[list[float]] = [[] for _ in runs]
        for turn in order:
            times[turn].append(burst(called[turn]))
        return times

    def _runs(self, function: Any, arguments: Arguments) -> Callable[[], float]:
        return lambda: undisturbed(lambda: self.seconds(function, *arguments()))


class Host(LocalExecutor):
    """Runs candidates on the CPU: tensors share memory with NumPy, and the wall clock gives the time. Each thread is
    pinned to one of `cpus`."""

    def __init__(self, threads: int, cpus: Sequence[int], pool: str | None) -> None:
        super().__init__(tvm.cpu())
        self._cpus = cpus
        self.pool = None if pool is None else open_pool(Path(pool))
        if self.pool is not None:
            self.pool.threads(threads)

    def ready(self) -> None:
        pin_threads(self._cpus)

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        return np.from_dlpack(tensor)

    def guarded(self, array: np.ndarray) -> tuple[tvm.runtime.Tensor, Guarded]:
        made = Guarded(array)
        return tvm.runtime.from_dlpack(made.array), made

    def is_whole(self, around: Guarded | None) -> bool:
        return around is None or around.is_whole()

    def fill(self, fill: Fill) -> None:
        for tensor, value in fill:
            np.from_dlpack(tensor).fill(value)

    def cold(self, packed: np.ndarray, cold_bytes: int) -> ColdWeight:
        return HostColdWeight(packed, cold_bytes)

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        start = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - start


class Accelerator(LocalExecutor):
    """Runs candidates on a device behind one of TVM's runtimes, which has its own memory and whose events give the
    time. Calls are waited for: an OpenCL queue holds one at a time (some drivers hang on long queues), and a CUDA queue
    two, see `DeviceKind.queue_depth`."""

    def __init__(self, name: str) -> None:
        super().__init__(runtime_device(name))
        self._queues = kind_of(name).queue_depth > 1

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        return tensor.numpy()

    def guarded(self, array: np.ndarray) -> tuple[tvm.runtime.Tensor, tvm.runtime.Tensor]:
        """Copy an array to the device. The guard lies behind the tensor alone, because kernels take whole buffers."""
        memory = tvm.runtime.empty((array.nbytes + GUARD_BYTES,), "uint8", self.device)
        tensor = memory._create_view(array.shape, str(array.dtype))
        tensor.copyfrom(np.ascontiguousarray(array))
        behind = memory._create_view((GUARD_BYTES,), "uint8", array.nbytes)
        behind.copyfrom(guard())
        return tensor, behind

    def is_whole(self, around: tvm.runtime.Tensor | None) -> bool:
        return around is None or is_whole(around.numpy())

    def fill(self, fill: Fill) -> None:
        for tensor, value in fill:
            tensor.copyfrom(np.full(tuple(tensor.shape), value, str(tensor.dtype)))

    def cold(self, packed: np.ndarray, cold_bytes: int) -> ColdWeight:
        return DeviceColdWeight(packed, cold_bytes, self.device)

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        return timed_call(self.device, function, *arguments)

    def _runs(self, function: Any, arguments: Arguments) -> Callable[[], float]:
        if not self._queues:
            return super()._runs(function, arguments)

        def second() -> float:
            first, timed = arguments(), arguments()
            # An idle GPU would pass the first event at once and then wait some 5 us for the kernel to be launched.
            function(*first)
            return self.seconds(function, *timed)

        return lambda: undisturbed(second)


def open_executor(settings: ExecutorSettings, waits: Callable[[Standing], object]) -> Executor:
    """Open the executor that a worker's settings ask for. `waits` is called now and then while others measure on a
    board. Raises BadInput where the device is not there, and DeviceLost for a board that cannot be reached."""
    kind = kind_of(settings.device)
    if kind.is_remote:
        return RemoteExecutor(settings, waits)
    if kind.is_cpu:
        return Host(settings.threads, settings.cpus, settings.pool)
    return Accelerator(settings.device)
