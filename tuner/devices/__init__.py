"""Opens the devices that kernels are tuned for. Start at `open_device`, and for a kind of device at `kind.DeviceKind`;
`board_agent.topology` knows the host's cores and caches."""

from board_agent.memory import large_pages
from board_agent.topology import (
    last_level_cache_bytes,
    pin_current_process,
    pin_threads,
    usable_cpus,
)
from tuner.devices import cuda  # registers how CUDA kernels are compiled
from tuner.devices.base import Device
from tuner.devices.device import find_device, list_devices, open_device, open_devices, runtime_device
from tuner.devices.keys import flush_every, is_emulated
from tuner.devices.kind import DeviceKind, Form, refuse_threads
from tuner.devices.memory import placed_in_large_pages
from tuner.devices.opencl import timed_call
from tuner.devices.registry import all_kinds, kind_of, kinds_on_boards
from tuner.devices.storage import check_storage

__all__ = [
    "Device",
    "DeviceKind",
    "Form",
    "all_kinds",
    "check_storage",
    "cuda",
    "find_device",
    "flush_every",
    "is_emulated",
    "kind_of",
    "kinds_on_boards",
    "large_pages",
    "last_level_cache_bytes",
    "list_devices",
    "open_device",
    "open_devices",
    "pin_current_process",
    "pin_threads",
    "placed_in_large_pages",
    "refuse_threads",
    "runtime_device",
    "timed_call",
    "usable_cpus",
]
