"""Opens the devices that kernels are tuned for. Start at `open_device`; `board_agent.topology` knows the host's cores
and caches."""

from board_agent.memory import large_pages
from board_agent.topology import (
    last_level_cache_bytes,
    pin_current_process,
    pin_threads,
    usable_cpus,
)
from tuner.devices import cuda  # registers how CUDA kernels are compiled
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
from tuner.devices.keys import flush_every, is_emulated
from tuner.devices.memory import placed_in_large_pages
from tuner.devices.remote import (
    alike,
    boards_of,
    called,
    device_of,
    form_of,
    gpu_device_of,
    gpu_key_of,
    is_board,
    key_of,
    place_on_board,
)
from tuner.devices.storage import check_storage

__all__ = [
    "Device",
    "alike",
    "boards_of",
    "called",
    "check_storage",
    "compile_kernels",
    "compiles_when_run",
    "cuda",
    "device_of",
    "flush_every",
    "form_of",
    "gpu_device_of",
    "gpu_key_of",
    "is_board",
    "is_emulated",
    "keep_binaries_in",
    "key_of",
    "large_pages",
    "last_level_cache_bytes",
    "list_devices",
    "open_device",
    "open_devices",
    "pin_current_process",
    "pin_threads",
    "place_on_board",
    "placed_in_large_pages",
    "pocl_cache",
    "runtime_device",
    "timed_call",
    "usable_cpus",
]
