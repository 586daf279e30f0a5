"""Makes devices of what OpenCL drivers report. Start at `device_of`."""

from __future__ import annotations

from templates.gpu.limits import GpuLimits, gpu_target
from tuner.devices.base import Device
from tuner.devices.cpu.host import host_target
from tuner.devices.gpu import GPU_LANES
from tuner.devices.keys import device_key, unless_emulated
from tuner.devices.opencl.listing import DeviceInfo
from tuning_db.record import DeviceKey

# Words in a vendor's or a device's name, and their family. The first word that is found decides.
_FAMILIES = (
    ("mali", "mali"),
    ("arm", "mali"),
    ("adreno", "adreno"),
    ("qualcomm", "adreno"),
    ("nvidia", "nvidia"),
    ("advanced micro devices", "amd"),
    ("amd", "amd"),
    ("intel", "intel"),
)


def family_of(info: DeviceInfo) -> str:
    """Return the family of an OpenCL device, one of templates.gpu.limits.FAMILIES."""
    if info.type == "cpu":
        return "cpu"
    text = f"{info.vendor} {info.name}".lower()
    return next((family for word, family in _FAMILIES if word in text), "other")


def limits_of(info: DeviceInfo) -> GpuLimits:
    """Return the limits of an OpenCL device as templates read them."""
    family = family_of(info)
    return GpuLimits(
        kind="opencl",
        family=family,
        max_threads=info.max_work_group_size,
        local_memory_bytes=info.local_memory_bytes,
        lanes=max(4, info.native_float_lanes) if family == "cpu" else GPU_LANES,
        subgroups=info.subgroup_sizes,
        fp16=info.fp16,
        dots=_dots_of(info),
    )


def _dots_of(info: DeviceInfo) -> str:
    """Return `GpuLimits.dots` of a device. Khronos's functions are there from OpenCL C 3.0 on. On CPUs they are left
    out: Intel's runtime calls them for each lane by itself, which takes several times as long as arithmetic on vectors.
    """
    if info.type == "cpu":
        return ""
    if "cl_arm_integer_dot_product_accumulate_int8" in info.extensions:
        return "arm"
    is_new = info.version.startswith("OpenCL 3.")
    return "khr" if is_new and "cl_khr_integer_dot_product" in info.extensions else ""


def key_of(info: DeviceInfo, is_emulated: bool) -> DeviceKey:
    """Return the key of an OpenCL device in the tuning database. `is_emulated` tells of the machine that it is in."""
    limits = limits_of(info)
    key = device_key(limits, info.name, info.compute_units, platform=info.platform, driver=info.driver_version)
    return unless_emulated(key, is_emulated)


def device_of(name: str, info: DeviceInfo, *, cache_bytes: int, is_emulated: bool) -> Device:
    """Return the OpenCL device that is described. The host part of its code never runs where it is a board's: a board
    is sent launches."""
    target = gpu_target(limits_of(info), host_target(1), model=info.name)
    return Device(name, target, key_of(info, is_emulated), 1, cache_bytes, info.global_memory_bytes)
