"""This module runs kernels on the board's CUDA devices through pycuda: start at `Cuda`.

Kernels come as source and a list of launches, which tuner/measure/codegen/launches.py writes. The board's own nvcc
compiles them. TVM is not needed here. This module has not been run on a device yet; the tests compile and check what
the host sends.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pycuda.compiler
import pycuda.driver as cuda

from board_agent.backend import Backend, NotCompiled, Unusable
from board_agent.guards import GUARD_BYTES, guard, is_whole

_STATIC_BYTES = 48 << 10  # shared memory of a group that a kernel may use without setting an attribute


class Tensor:
    """Memory of the device, together with the shape and type of the array that it holds."""

    def __init__(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype


class Launches:
    """The kernels of a candidate, in the order in which they run.

    Each has its grid, its block, its bytes of shared memory and its arguments. An argument that the caller passes is
    given by its number.
    """

    def __init__(self, module: Any, described: dict[str, Any]) -> None:
        self._workspaces = [cuda.mem_alloc(max(1, size)) for size in described["workspaces"]]
        self._calls: list[tuple[Any, tuple[int, ...], tuple[int, ...], int, list[tuple[str, Any]]]] = []
        for launch in described["launches"]:
            grid, block = tuple(launch["groups"]), tuple(launch["items"])
            if 0 in grid or 0 in block:
                continue  # the launch works on an empty tensor
            kernel, shared = module.get_function(launch["kernel"]), int(launch["local_bytes"])
            if shared > _STATIC_BYTES:
                kernel.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            given = [self._resolved(kind, value) for kind, value in launch["arguments"]]
            kernel.prepare(["P" if kind != "number" else value.dtype for kind, value in given])
            self._calls.append((kernel, grid, block, shared, given))

    def _resolved(self, kind: str, value: Any) -> tuple[str, Any]:
        if kind == "argument":
            return kind, int(value)
        if kind == "workspace":
            return kind, self._workspaces[value]
        return "number", np.dtype(kind).type(value)

    def launch(self, stream: Any, arguments: Sequence[Tensor]) -> None:
        for kernel, grid, block, shared, given in self._calls:
            values = [arguments[value].memory if kind == "argument" else value for kind, value in given]
            kernel.prepared_async_call(grid, block, stream, *values, shared_size=shared)


class Cuda(Backend):
    """A backend that runs kernels on one CUDA device. Devices have the driver's numbers."""

    def __init__(self, number: int) -> None:
        self._number = number

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # nvcc writes there
        devices = _devices()
        if self._number >= len(devices):
            named = ", ".join(f"cuda:{i} is {device.name()}" for i, device in enumerate(devices)) or "none is"
            raise Unusable(f"there is no device cuda:{self._number} here: {named}")
        self._device = devices[self._number]
        context = self._device.make_context()
        atexit.register(context.pop)  # pycuda aborts a process that ends with an active context
        self._stream = cuda.Stream()
        self._before, self._after = cuda.Event(), cuda.Event()

    def describe(self) -> dict[str, Any]:
        return {**_described(self._device), "devices": [device.name() for device in _devices()]}

    def tensor(self, array: np.ndarray) -> Tensor:
        made = Tensor(cuda.mem_alloc(array.nbytes + GUARD_BYTES), array.shape, array.dtype)
        self._write(made, array)
        cuda.memcpy_htod(int(made.memory) + array.nbytes, guard())
        return made

    def _write(self, tensor: Tensor, array: np.ndarray) -> None:
        if array.nbytes:
            cuda.memcpy_htod(tensor.memory, np.ascontiguousarray(array))

    def is_whole(self, tensor: Tensor) -> bool:
        found = guard()
        nbytes = int(np.prod(tensor.shape)) * tensor.dtype.itemsize
        cuda.memcpy_dtoh(found, int(tensor.memory) + nbytes)
        return is_whole(found)

    def fill(self, tensor: Tensor, value: float) -> None:
        self._write(tensor, np.full(tensor.shape, value, tensor.dtype))

    def array(self, tensor: Tensor) -> np.ndarray:
        found = np.empty(tensor.shape, tensor.dtype)
        if found.nbytes:
            cuda.memcpy_dtoh(found, tensor.memory)
        return found

    def load(self, path: Path) -> Launches:
        described = json.loads(path.read_text())
        source, arch = described["source"], _arch(self._device)
        try:
            module = pycuda.compiler.SourceModule(source, no_extern_c=True, arch=arch, cache_dir=False)
            return Launches(module, described)
        except (cuda.CompileError, cuda.LogicError, cuda.LaunchError) as error:
            raise NotCompiled(_reason(error)) from error

    def call(self, function: Launches, arguments: Sequence[Tensor]) -> float:
        """Return the seconds between two events of the device, one before and one after all launches."""
        self._before.record(self._stream)
        function.launch(self._stream, arguments)
        self._after.record(self._stream)
        self._after.synchronize()
        return float(self._after.time_since(self._before)) * 1e-3


def _devices() -> list[Any]:
    try:
        cuda.init()
        return [cuda.Device(number) for number in range(cuda.Device.count())]
    except cuda.Error as error:
        raise Unusable(f"no CUDA driver works here: {_reason(error)}") from error


def describe_all() -> list[dict[str, Any]]:
    """Describe every CUDA device of this machine; see Cuda.describe. Raises Unusable."""
    return [_described(device) for device in _devices()]


def _described(device: Any) -> dict[str, Any]:
    """Return the fields of tuner.devices.gpu.CudaInfo."""
    asked = {
        "compute_units": "MULTIPROCESSOR_COUNT",
        "max_threads": "MAX_THREADS_PER_BLOCK",
        "shared_memory_bytes": "MAX_SHARED_MEMORY_PER_BLOCK",
        "warp": "WARP_SIZE",
        "cache_bytes": "L2_CACHE_SIZE",
    }
    numbers = {field: int(device.get_attribute(getattr(cuda.device_attribute, a))) for field, a in asked.items()}
    capability = [int(part) for part in device.compute_capability()]
    memory = int(device.total_memory())
    return {"kind": "cuda", "name": device.name(), "capability": capability, "memory_bytes": memory, **numbers}


def _arch(device: Any) -> str:
    """Return the architecture name, as tuner.devices.gpu.CudaInfo.arch does."""
    major, minor = device.compute_capability()
    return f"sm_{major}{minor}{'a' if major == 9 else ''}"


def _reason(error: Exception) -> str:
    """Return the first line of a message with an error of nvcc, or else its first line."""
    text = getattr(error, "stderr", None) or str(error)
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)


def open_backend(number: int, _threads: int, _cpus: Sequence[int] | None) -> Cuda:
    """Make the backend of the `number`-th CUDA device. Threads and CPUs are not used."""
    return Cuda(number)
