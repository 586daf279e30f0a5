"""Defines `Device`, a processor with its TVM target and its key in the tuning database. `runtime_device` gives TVM's
own device for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.target import Target

from tuner.devices import opencl
from tuner.devices.keys import family_of, flush_every
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_POCL = "Portable Computing Language"


@dataclass(frozen=True)
class Device:
    """A processor that kernels run on. `threads` is how many host threads a kernel uses, each on its own core (one for
    kernels that run on another processor). `cache_bytes` is the size of its last cache level. `memory_bytes` is what a
    network may have there, None where that is this process's own memory."""

    name: str
    target: Target
    key: DeviceKey
    threads: int
    cache_bytes: int
    memory_bytes: int | None = None

    @property
    def is_host(self) -> bool:
        """Tell whether the device is a CPU, here or on a board."""
        return self.key.kind == "cpu"

    @property
    def title(self) -> str:
        """Return the device's name and model, for a person."""
        return f"{self.name} ({self.key.model})"

    def tvm_device(self) -> tvm.runtime.Device:
        """Return TVM's device of this name; see `runtime_device`."""
        return runtime_device(self.name)


def runtime_device(name: str) -> tvm.runtime.Device:
    """Return TVM's device of a name ("cpu", "opencl:0", "cuda:1"), with the runtime that drives it loaded.

    Where a driver hangs on long queues, they are flushed in time from now on. Raises BadInput where the device is not
    there.
    """
    kind, _, number = name.partition(":")
    if kind == "opencl":
        opencl.load()
    device = tvm.runtime.device(kind, int(number or 0))
    if not device.exist:
        raise BadInput(f"device {name}: not found here; `tune doctor` says which devices are, and what is missing")
    if kind == "opencl" and (launches := flush_every(family_of(opencl.device_info(device.index)))):
        opencl.set_flush_every(device.index, launches)
    return device


def timed_call(device: tvm.runtime.Device, function: Callable[..., Any], *arguments: Any) -> float:
    """Call a function of a device's kernels, wait for it, and return the seconds between two events of the device."""
    opencl.load()
    nanoseconds = tvm.get_global_func("edgetune.time_call")(device, function, *arguments)
    return float(nanoseconds) * 1e-9


def compile_kernels(name: str, module: tvm.runtime.Module) -> None:
    """Let the driver of an OpenCL device compile the kernels of a built module into the cache of binaries, where the
    process that runs them finds them. Kernels of other devices are machine code already.

    Raises RuntimeError with the driver's log if it refuses them.
    """
    kind, _, number = name.partition(":")
    if kind != "opencl":
        return
    opencl.load()
    for child in module.imports:
        if child.kind == "opencl":
            tvm.get_global_func("edgetune.opencl.compile")(int(number), child.inspect_source())


def compiles_when_run(name: str) -> bool:
    """Tell whether a device's driver compiles a kernel when it is first launched, for the size of its groups, and keeps
    the result in a cache of its own (PoCL)."""
    kind, _, number = name.partition(":")
    return kind == "opencl" and opencl.device_info(int(number)).platform == _POCL


def pocl_cache(folder: str) -> str:
    """Return the folder where PoCL keeps what it compiles; see `keep_binaries_in`."""
    return f"{folder}-pocl"


def keep_binaries_in(folder: str, name: str) -> None:
    """Set the folder where this process looks for a device's compiled OpenCL programs and leaves them, instead of the
    user's cache. Candidates are then compiled once and never again. This has to be called before a driver is opened."""
    opencl.load()
    os.environ["POCL_CACHE_DIR"] = pocl_cache(folder)
    # To hand out a program, PoCL would compile its kernels for groups of any size, which nobody runs.
    tvm.get_global_func("edgetune.opencl.set_binary_cache")("" if compiles_when_run(name) else folder)
