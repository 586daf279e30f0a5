"""What devices have in common with the host: cores, and memory. Start at `shares_cores` and `shares_memory`."""

from __future__ import annotations

from tuner.devices import opencl
from tuner.devices.base import Device

# Jetsons alone have these (TX1 and Nano, TX2, Xavier, Orin): their GPU has no memory of its own.
_INTEGRATED = frozenset(("sm_53", "sm_62", "sm_72", "sm_87"))


def shares_cores(device: Device) -> bool:
    """Whether its kernels run on the host's own cores: the CPU itself, and OpenCL runtimes for CPUs. Such devices do
    not work at the same time, or each of them slower by as much."""
    return device.key.family == "cpu" or device.is_host


def shares_memory(device: Device) -> bool:
    """Whether it works on the host's main memory. Its tensors are still allocations of its own: they are copied."""
    if shares_cores(device):
        return True
    kind, _, number = device.name.partition(":")
    if kind == "opencl":
        return opencl.has_host_memory(int(number))
    return device.key.attrs.get("arch") in _INTEGRATED
