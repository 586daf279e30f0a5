"""Compiles OpenCL kernels ahead of their first launch, and keeps what drivers compile. Start at `compile_kernels`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import tvm

from tuner.devices.opencl.library import load
from tuner.devices.opencl.listing import device_info

_POCL = "Portable Computing Language"


def compile_kernels(index: int, module: tvm.runtime.Module) -> None:
    """Let the driver of the device "opencl:`index`" compile the kernels of a built module into the cache of binaries,
    where the process that runs them finds them. Raises RuntimeError with the driver's log if it refuses them."""
    load()
    for child in module.imports:
        if child.kind == "opencl":
            tvm.get_global_func("edgetune.opencl.compile")(index, child.inspect_source())


def compiles_when_run(index: int) -> bool:
    """Tell whether a device's driver compiles a kernel when it is first launched, for the size of its groups, and keeps
    the result in a cache of its own (PoCL)."""
    return device_info(index).platform == _POCL


def pocl_cache(folder: str) -> str:
    """Return the folder where PoCL keeps what it compiles; see `keep_binaries_in`."""
    return f"{folder}-pocl"


def keep_binaries_in(folder: str, index: int) -> None:
    """Set the folder where this process looks for a device's compiled OpenCL programs and leaves them, instead of the
    user's cache. Candidates are then compiled once and never again. This has to be called before a driver is opened."""
    load()
    os.environ["POCL_CACHE_DIR"] = pocl_cache(folder)
    # To hand out a program, PoCL would compile its kernels for groups of any size, which nobody runs.
    tvm.get_global_func("edgetune.opencl.set_binary_cache")("" if compiles_when_run(index) else folder)


def clear_binaries(folder: str) -> None:
    """Delete what was compiled into a folder, by whichever driver."""
    shutil.rmtree(folder, ignore_errors=True)
    # PoCL's cache folder itself stays: the driver has it open.
    for left in Path(pocl_cache(folder)).glob("*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
