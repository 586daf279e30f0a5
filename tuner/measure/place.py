"""Where candidates run: the host's CPU, or a device behind one of TVM's runtimes. Start at `open_place`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tvm

from tuner.devices import runtime_device, timed_call
from tuner.measure.cold import ColdWeight, DeviceColdWeight, HostColdWeight


class Place(Protocol):
    """Tensors on a device, and the time that a call takes there. `pinned`: its kernels run on TVM's own threads,
    each of which has to be held on a core."""

    device: Any
    pinned: bool

    def tensor(self, array: np.ndarray) -> tvm.runtime.Tensor:
        """A copy on the device."""
        ...

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        """What a tensor holds now; not to be written to."""
        ...

    def fill(self, tensor: tvm.runtime.Tensor, value: float) -> None: ...

    def cold(self, packed: np.ndarray, cold_bytes: int) -> ColdWeight:
        """Copies of a packed weight, together larger than `cold_bytes`."""
        ...

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        """Call a function and return the seconds that it took on the device."""
        ...


class Host:
    """The CPU: tensors share memory with NumPy, time is the wall clock's."""

    pinned = True

    def __init__(self) -> None:
        self.device = tvm.cpu()

    def tensor(self, array: np.ndarray) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(array, self.device)

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        return np.from_dlpack(tensor)

    def fill(self, tensor: tvm.runtime.Tensor, value: float) -> None:
        np.from_dlpack(tensor).fill(value)

    def cold(self, packed: np.ndarray, cold_bytes: int) -> ColdWeight:
        return HostColdWeight(packed, cold_bytes)

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        start = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - start


class Accelerator:
    """An OpenCL or CUDA device: its own memory, time between two of its events. A call is waited for, so there is
    never more than one of them in a queue (some drivers hang on long ones)."""

    pinned = False

    def __init__(self, name: str) -> None:
        self.device = runtime_device(name)

    def tensor(self, array: np.ndarray) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(array, self.device)

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        return tensor.numpy()

    def fill(self, tensor: tvm.runtime.Tensor, value: float) -> None:
        tensor.copyfrom(np.full(tuple(tensor.shape), value, str(tensor.dtype)))

    def cold(self, packed: np.ndarray, cold_bytes: int) -> ColdWeight:
        return DeviceColdWeight(packed, cold_bytes, self.device)

    def seconds(self, function: Callable[..., Any], *arguments: Any) -> float:
        return timed_call(self.device, function, *arguments)


def open_place(name: str) -> Place:
    """The place of a device's name ("cpu", "opencl:0"). Raises BadInput where the device is not there."""
    return Host() if name == "cpu" else Accelerator(name)
