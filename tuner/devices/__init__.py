"""Devices that kernels are tuned for. Start at `open_device`; `topology` knows the host's cores and caches."""

from tuner.devices.base import (
    Device,
    compile_kernels,
    compiles_when_run,
    keep_binaries_in,
    pocl_cache,
    runtime_device,
    timed_call,
)
from tuner.devices.device import list_devices, open_device, open_devices
from tuner.devices.memory import large_pages, placed_in_large_pages
from tuner.devices.storage import check_storage
from tuner.devices.topology import (
    last_level_cache_bytes,
    pin_current_process,
    pin_threads,
    usable_cpus,
)

__all__ = [
    "Device",
    "check_storage",
    "compile_kernels",
    "compiles_when_run",
    "keep_binaries_in",
    "large_pages",
    "last_level_cache_bytes",
    "list_devices",
    "open_device",
    "open_devices",
    "pin_current_process",
    "pin_threads",
    "placed_in_large_pages",
    "pocl_cache",
    "runtime_device",
    "timed_call",
    "usable_cpus",
]
