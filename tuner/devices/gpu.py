"""Opens the OpenCL and CUDA devices that are here, from what their drivers report. Start at `open_opencl` and
`open_cuda`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import tvm

from board_agent.facts import emulated
from board_agent.topology import last_level_cache_bytes
from templates.gpu.limits import GpuLimits, gpu_target
from tuner.devices import opencl
from tuner.devices.base import Device, runtime_device
from tuner.devices.cpu import host_target
from tuner.devices.cuda import arch_of, capability_of
from tuner.devices.keys import device_key, family_of, unless_emulated
from tuner.devices.opencl import DeviceInfo
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_GPU_LANES = 4
LEAST_CACHE_BYTES = 1 << 20  # where a driver reports no cache


def limits_of(info: DeviceInfo) -> GpuLimits:
    """Return the limits of an OpenCL device as templates read them."""
    family = family_of(info)
    return GpuLimits(
        kind="opencl",
        family=family,
        max_threads=info.max_work_group_size,
        local_memory_bytes=info.local_memory_bytes,
        lanes=max(4, info.native_float_lanes) if family == "cpu" else _GPU_LANES,
        subgroups=info.subgroup_sizes,
        fp16=info.fp16,
    )


def open_opencl(index: int) -> Device:
    """Open the OpenCL device of a number, as `opencl.devices` counts them. Raises BadInput where there is none."""
    info = opencl.device_info(index)
    limits = limits_of(info)
    key = device_key(limits, info.name, info.compute_units, platform=info.platform, driver=info.driver_version)
    key = unless_emulated(key, emulated())
    name = f"opencl:{index}"
    cache = last_level_cache_bytes() if limits.family == "cpu" else _cache_bytes(runtime_device(name))
    return Device(name, gpu_target(limits, host_target(1), model=info.name), key, 1, cache, info.global_memory_bytes)


@dataclass(frozen=True)
class CudaInfo:
    """Facts that a CUDA device's driver gives. `capability` is the major and the minor number. `shared_memory_bytes` is
    what a block gets without asking for more. `compute_units` are multiprocessors."""

    name: str
    capability: tuple[int, int]
    compute_units: int
    max_threads: int
    shared_memory_bytes: int
    warp: int
    memory_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> CudaInfo:
        """Make the object from the fields by their names. Raises BadInput if one is missing or makes no sense."""
        try:
            major, minor = map(int, described["capability"])
            rest = {f.name: int(described[f.name]) for f in fields(cls) if f.name not in ("name", "capability")}
            return cls(str(described["name"]), (major, minor), **rest)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"a CUDA device described itself in a way that is not understood: {error!r}") from error

    @property
    def arch(self) -> str:
        """Return the architecture that the device's kernels are compiled for."""
        return arch_of(*self.capability)

    @property
    def limits(self) -> GpuLimits:
        return GpuLimits(
            kind="cuda",
            family="nvidia",
            max_threads=self.max_threads,
            local_memory_bytes=self.shared_memory_bytes,
            lanes=_GPU_LANES,
            subgroups=(self.warp,),
            fp16=self.capability[0] >= 6 or self.arch == "sm_53",
            arch=self.arch,
        )

    @property
    def key(self) -> DeviceKey:
        return device_key(self.limits, self.name, self.compute_units, arch=self.arch)


def open_cuda(index: int) -> Device:
    """Open the CUDA device of a number. Raises BadInput where there is none."""
    device = runtime_device(f"cuda:{index}")
    info = CudaInfo(
        name=str(device.device_name),
        capability=capability_of(device),
        compute_units=int(device.multi_processor_count),
        max_threads=int(device.max_threads_per_block),
        shared_memory_bytes=int(device.max_shared_memory_per_block),
        warp=int(device.warp_size),
        memory_bytes=int(device.total_global_memory),
        cache_bytes=_cache_bytes(device),
    )
    target = gpu_target(info.limits, host_target(1))
    return Device(f"cuda:{index}", target, info.key, 1, info.cache_bytes, info.memory_bytes)


def _cache_bytes(device: tvm.runtime.Device) -> int:
    return max(int(device.l2_cache_size_bytes or 0), LEAST_CACHE_BYTES)


def list_gpus(kind: str | None = None) -> list[Device]:
    """Return every OpenCL and CUDA device that can be opened here, or those of one kind. Raises BadInput where the
    OpenCL runtime is needed and cannot be compiled."""
    found = [open_opencl(index) for index in range(0 if kind == "cuda" else len(opencl.devices()))]
    count = 0
    while kind != "opencl" and tvm.runtime.device("cuda", count).exist:
        found.append(open_cuda(count))
        count += 1
    return found
