"""Lists the drivers and devices that our OpenCL runtime finds. Start at `devices`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.devices.opencl.library import call
from tuner.errors import BadInput


@dataclass(frozen=True)
class DeviceInfo:
    """Facts that a driver gives of a device. `index` is its N in "opencl:N". `type` is gpu, cpu, accelerator or other.
    `local_memory_type` is local, or global where it is ordinary memory. `subgroup_sizes` are those that a kernel may
    require (cl_intel_required_subgroup_size). Lanes are those of float32 vectors. `library` is the driver's file."""

    index: int
    platform: str
    name: str
    vendor: str
    version: str
    driver_version: str
    type: str
    compute_units: int
    max_work_group_size: int
    max_work_item_sizes: tuple[int, ...]
    local_memory_bytes: int
    local_memory_type: str
    global_memory_bytes: int
    max_alloc_bytes: int
    clock_mhz: int
    extensions: tuple[str, ...]
    subgroup_sizes: tuple[int, ...]
    fp16: bool
    fp64: bool
    native_float_lanes: int
    preferred_float_lanes: int
    library: str


@dataclass(frozen=True)
class Driver:
    """A library that was looked for. `devices` are the numbers of the devices that it offers. Where it offers none,
    `problem` tells why."""

    path: str
    devices: tuple[int, ...]
    problem: str


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return FFI values as Python's own types. Otherwise strings would be of a subclass of str, and sequences would be
    lists."""
    values = {str(key): value for key, value in fields.items()}
    for key, value in values.items():
        if isinstance(value, str):
            values[key] = str(value)
        elif not isinstance(value, bool | int):
            values[key] = tuple(int(item) for item in value)
    return values


def _info(index: int) -> DeviceInfo:
    found = _plain(call("device_info", index))
    found["extensions"] = tuple(sorted(found["extensions"].split()))
    return DeviceInfo(index=index, **found)


def info_of(described: Mapping[str, Any], index: int = 0) -> DeviceInfo:
    """Make the object from what a board's agent says of a device. Raises KeyError for a field that is missing."""
    known = {f.name: described[f.name] for f in dataclasses.fields(DeviceInfo) if f.name != "index"}
    for name in ("max_work_item_sizes", "extensions", "subgroup_sizes"):
        known[name] = tuple(known[name])
    return DeviceInfo(index=index, **known)


def devices() -> list[DeviceInfo]:
    """Return every OpenCL device, by its number. This opens the drivers. Raises BadInput as `load` does."""
    return [_info(index) for index in range(int(call("device_count")))]


def drivers() -> list[Driver]:
    """Return every driver that was looked for, usable or not. This opens the drivers. Raises BadInput as
    `load` does."""
    return [Driver(**_plain(fields)) for fields in call("drivers")]


def device_info(index: int) -> DeviceInfo:
    """Return the device "opencl:`index`". Raises BadInput, naming the devices that there are, if there is no such
    device."""
    found = devices()
    if 0 <= index < len(found):
        return found[index]
    if found:
        there = ", ".join(f"opencl:{info.index} ({info.name})" for info in found)
        raise BadInput(f"there is no device opencl:{index}: give one of {there}")
    tried = "; ".join(f"{driver.path}: {driver.problem}" for driver in drivers())
    raise BadInput(
        f"there is no device opencl:{index}, as no OpenCL driver works here ({tried}): install the driver of your GPU, "
        "or pip install 'edgetune[opencl]' for Intel's on the CPU"
    )


def has_host_memory(index: int) -> bool:
    """Tell whether the device "opencl:`index`" works on the host's memory and has none of its own, by what its driver
    says. Integrated GPUs and CPUs do."""
    return bool(call("has_host_memory", index))
