"""Tells what a device has in common with the host: cores, and memory. Start at `shares_cores` and `shares_memory`."""

from __future__ import annotations

from tuner.devices.base import Device


def shares_cores(device: Device) -> bool:
    """Tell whether a device's kernels run on the host's own cores, as those of the CPU itself and of OpenCL runtimes
    for CPUs do. Nothing is gained if such devices work at the same time: each of them is slower by as much."""
    return device.key.family == "cpu" or device.is_host


def shares_memory(device: Device) -> bool:
    """Tell whether a device works on the host's main memory. Its tensors are still allocations of its own, so that
    values are copied."""
    return shares_cores(device) or device.kind.shares_memory(device)
