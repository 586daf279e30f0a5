"""This module runs kernels on the board's OpenCL devices through pyopencl: start at `OpenCL`.

Kernels come as source and a list of launches, which tuner/measure/codegen/launches.py writes. The board's own driver
compiles them. TVM is not needed here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from board_agent.backend import Backend, NotCompiled, Unusable
from board_agent.guards import GUARD_BYTES, guard, is_whole
from board_agent.topology import spread, threads

os.environ["PYOPENCL_NO_CACHE"] = "1"  # a program that is measured once need not be kept
os.environ.pop("PYOPENCL_COMPILER_OUTPUT", None)

import pyopencl as cl

# pyopencl imports these modules when it is first used. By then the process is confined and may not read them any more.
for _later in ("pyopencl.characterize", "pyopencl.invoker", "shlex"):
    with contextlib.suppress(ModuleNotFoundError):  # another version of pyopencl lacks it
        importlib.import_module(_later)

_POCL = "Portable Computing Language"
_OPTIONS = "// edgetune-build-options:"  # begins the comment with build options in a kernel's source
_KEPT_SECONDS = 600.0  # for which files that PoCL compiled are kept; by then they are loaded or no longer needed


class Tensor:
    """A buffer of the device, together with the shape and type of the array that it holds."""

    def __init__(self, buffer: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.buffer, self.shape, self.dtype = buffer, shape, dtype


class Launches:
    """The kernels of a candidate, in the order in which they run.

    `calls` holds each kernel with its global and its local size. `slots` lists the kernel arguments that the caller
    passes: (kernel, position of the argument, number of the caller's argument).
    """

    def __init__(self, context: Any, program: Any, described: dict[str, Any]) -> None:
        flags = cl.mem_flags.READ_WRITE
        # The list keeps the buffers alive, because a kernel does not hold references to its arguments.
        self._workspaces = [cl.Buffer(context, flags, max(1, size)) for size in described["workspaces"]]
        self.calls: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = []
        self.slots: list[tuple[Any, int, int]] = []
        for launch in described["launches"]:
            if 0 in launch["groups"] or 0 in launch["items"]:
                continue  # the launch works on an empty tensor
            kernel = cl.Kernel(program, launch["kernel"])  # a new one for each launch, because it stores its arguments
            for place, (kind, value) in enumerate(launch["arguments"]):
                if kind == "argument":
                    self.slots.append((kernel, place, value))
                elif kind == "workspace":
                    kernel.set_arg(place, self._workspaces[value])
                else:
                    kernel.set_arg(place, np.dtype(kind).type(value))
            items = tuple(launch["items"])
            self.calls.append((kernel, tuple(g * i for g, i in zip(launch["groups"], items)), items))
        self._given: list[Any] = [None] * len(self.slots)

    def give(self, arguments: Sequence[Tensor]) -> None:
        for number, (kernel, place, argument) in enumerate(self.slots):
            buffer = arguments[argument].buffer
            if self._given[number] is not buffer:
                kernel.set_arg(place, buffer)
                self._given[number] = buffer


class OpenCL(Backend):
    """A backend that runs kernels on one OpenCL device.

    Device numbers count GPUs first, then the other devices. `flush_every` is the number of launches after which the
    queue is flushed; with 0 the driver decides. Mali drivers hang on long queues.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.flush_every = 0

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        self._cache = folder / "compiled"
        os.environ["POCL_CACHE_DIR"] = str(self._cache)
        self.flush_every = int(settings.get("flush_every", 0))
        before = threads()
        devices = _devices()
        if self._number >= len(devices):
            raise Unusable(f"there is no device opencl:{self._number} here: {_named(devices)}")
        self._device = devices[self._number]
        self._context = cl.Context([self._device])
        self._queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        if self._device.type & cl.device_type.CPU:
            spread(threads() - before)

    def describe(self) -> dict[str, Any]:
        return {**_described(self._device), "devices": [d.name.strip() for d in _devices()]}

    def tensor(self, array: np.ndarray) -> Tensor:
        memory = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, array.nbytes + GUARD_BYTES)
        made = Tensor(memory, array.shape, array.dtype)
        self._write(made, array)
        cl.enqueue_copy(self._queue, made.buffer, guard(), dst_offset=array.nbytes, is_blocking=True)
        return made

    def _write(self, tensor: Tensor, array: np.ndarray) -> None:
        if array.nbytes:
            cl.enqueue_copy(self._queue, tensor.buffer, np.ascontiguousarray(array), is_blocking=True)

    def is_whole(self, tensor: Tensor) -> bool:
        found = guard()
        nbytes = int(np.prod(tensor.shape)) * tensor.dtype.itemsize
        cl.enqueue_copy(self._queue, found, tensor.buffer, src_offset=nbytes, is_blocking=True)
        return is_whole(found)

    def fill(self, tensor: Tensor, value: float) -> None:
        self._write(tensor, np.full(tensor.shape, value, tensor.dtype))

    def array(self, tensor: Tensor) -> np.ndarray:
        found = np.empty(tensor.shape, tensor.dtype)
        if found.nbytes:
            cl.enqueue_copy(self._queue, found, tensor.buffer, is_blocking=True)
        return found

    def load(self, path: Path) -> Launches:
        described = json.loads(path.read_text())
        source = described["source"]
        options = " ".join(line.split(_OPTIONS)[1].strip() for line in source.splitlines() if _OPTIONS in line)
        self._forget_compiled()
        try:
            made = Launches(self._context, cl.Program(self._context, source).build(options=options), described)
        except cl.Error as error:
            raise NotCompiled(_reason(error)) from error
        if self._device.platform.name == _POCL:  # PoCL compiles a kernel at its first launch
            self.call(made, [self.tensor(np.zeros(size, np.uint8)) for size in described["arguments"]])
        return made

    def _forget_compiled(self) -> None:
        """Delete the files that PoCL compiled long ago."""
        for path in self._cache.glob("*/*") if self._cache.exists() else ():
            if path.is_dir() and time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(str(path), ignore_errors=True)

    def call(self, function: Launches, arguments: Sequence[Tensor]) -> float:
        """Return the seconds between two events of the device, one before and one after all launches."""
        function.give(arguments)
        events = [cl.enqueue_marker(self._queue)]
        for number, (kernel, extents, items) in enumerate(function.calls, 1):
            events.append(cl.enqueue_nd_range_kernel(self._queue, kernel, extents, items))
            if self.flush_every and number % self.flush_every == 0:
                self._queue.flush()
        events.append(cl.enqueue_marker(self._queue))
        self._queue.finish()
        return float(events[-1].profile.end - events[0].profile.end) * 1e-9


def _devices() -> list[Any]:
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise Unusable(f"no OpenCL driver works here: {_reason(error)}") from error
    return sorted(found, key=lambda device: not device.type & cl.device_type.GPU)


def describe_all() -> list[dict[str, Any]]:
    """Describe every OpenCL device of this machine; see OpenCL.describe. Raises Unusable."""
    return [_described(device) for device in _devices()]


def _named(devices: Sequence[Any]) -> str:
    return ", ".join(f"opencl:{i} is {device.name.strip()}" for i, device in enumerate(devices)) or "none is"


def _described(device: Any) -> dict[str, Any]:
    """Return the fields of tuner.devices.opencl.DeviceInfo, as the host's own OpenCL runtime would report them."""
    extensions = tuple(sorted(device.extensions.split()))
    kinds = ((cl.device_type.GPU, "gpu"), (cl.device_type.CPU, "cpu"), (cl.device_type.ACCELERATOR, "accelerator"))
    subgroups = "cl_intel_required_subgroup_size" in extensions
    return {
        "platform": device.platform.name,
        "name": device.name,
        "vendor": device.vendor,
        "version": device.version,
        "driver_version": device.driver_version,
        "type": next((name for bit, name in kinds if device.type & bit), "other"),
        "compute_units": device.max_compute_units,
        "max_work_group_size": device.max_work_group_size,
        "max_work_item_sizes": list(device.max_work_item_sizes),
        "local_memory_bytes": device.local_mem_size,
        "local_memory_type": "local" if device.local_mem_type == cl.device_local_mem_type.LOCAL else "global",
        "global_memory_bytes": device.global_mem_size,
        "max_alloc_bytes": device.max_mem_alloc_size,
        "clock_mhz": device.max_clock_frequency,
        "extensions": extensions,
        "subgroup_sizes": _subgroup_sizes(device) if subgroups else [],
        "fp16": "cl_khr_fp16" in extensions,
        "fp64": "cl_khr_fp64" in extensions,
        "native_float_lanes": device.native_vector_width_float,
        "preferred_float_lanes": device.preferred_vector_width_float,
        "library": "",
        "host_memory": _has_host_memory(device),
        "cache_bytes": device.global_mem_cache_size,
    }


def _subgroup_sizes(device: Any) -> list[int]:
    what = getattr(cl.device_info, "SUB_GROUP_SIZES_INTEL", 0x4108)  # older pyopencl does not name it
    found = device.get_info(what)
    return [int(size) for size in (found if isinstance(found, (list, tuple)) else [found])]


def _has_host_memory(device: Any) -> bool:
    """Tell whether the driver says that the device works on the host's memory. OpenCL 2 no longer asks drivers to know
    that; one that does not is taken to have memory of its own."""
    try:
        return bool(device.host_unified_memory)
    except cl.Error:
        return False


def _reason(error: Exception) -> str:
    """Return the first line of a message with an error of the driver's compiler, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else type(error).__name__)


def open_backend(number: int, _threads: int, _cpus: Sequence[int] | None) -> OpenCL:
    """Make the backend of the `number`-th OpenCL device, GPUs first. Threads and CPUs are not used."""
    return OpenCL(number)
