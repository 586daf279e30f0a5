"""Makes OpenCL a device of TVM with a runtime library of our own, because the wheel has none. Start at `load`, then
`devices`.

`load()` makes `tvm.runtime.device("opencl", i)` work, with all that TVM's devices can do. The library opens several
drivers at once: the system's ICD loader (libOpenCL.so.1) and Intel's CPU runtime from pip, or instead of these the
libraries that EDGETUNE_OPENCL names (paths, separated by ":"). Devices are numbered GPUs first, then the others, in the
order of the drivers. pyopencl is not used: it sees one ICD loader's devices only, and the library has to number all of
them anyway.
"""

from __future__ import annotations

from tuner.devices.opencl.control import (
    ASIDE,
    BACK,
    JOIN,
    Launch,
    counters,
    leave_stage,
    order_streams,
    set_binary_cache,
    set_build_options,
    set_flush_every,
    set_host_threads,
    timed_call,
    trace,
)
from tuner.devices.opencl.kind import OpenclKind
from tuner.devices.opencl.library import load
from tuner.devices.opencl.listing import DeviceInfo, Driver, device_info, devices, drivers, has_host_memory, info_of

__all__ = [
    "ASIDE",
    "BACK",
    "JOIN",
    "KIND",
    "DeviceInfo",
    "Driver",
    "Launch",
    "OpenclKind",
    "counters",
    "device_info",
    "devices",
    "drivers",
    "has_host_memory",
    "info_of",
    "leave_stage",
    "load",
    "order_streams",
    "set_binary_cache",
    "set_build_options",
    "set_flush_every",
    "set_host_threads",
    "timed_call",
    "trace",
]

KIND = OpenclKind()
