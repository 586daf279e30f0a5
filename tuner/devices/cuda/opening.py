"""Makes devices of what CUDA's driver reports. Start at `CudaInfo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import tvm

from templates.gpu.limits import GpuLimits, gpu_target
from tuner.devices.base import Device
from tuner.devices.cpu.host import host_target
from tuner.devices.cuda.building import arch_of, capability_of
from tuner.devices.gpu import GPU_LANES, LEAST_CACHE_BYTES, cache_bytes
from tuner.devices.keys import device_key
from tuner.errors import BadInput
from tuning_db.record import DeviceKey


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

    @classmethod
    def from_runtime(cls, device: tvm.runtime.Device) -> CudaInfo:
        """Ask TVM's device."""
        return cls(
            name=str(device.device_name),
            capability=capability_of(device),
            compute_units=int(device.multi_processor_count),
            max_threads=int(device.max_threads_per_block),
            shared_memory_bytes=int(device.max_shared_memory_per_block),
            warp=int(device.warp_size),
            memory_bytes=int(device.total_global_memory),
            cache_bytes=cache_bytes(device),
        )

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
            lanes=GPU_LANES,
            subgroups=(self.warp,),
            fp16=self.capability[0] >= 6 or self.arch == "sm_53",
            arch=self.arch,
        )

    @property
    def key(self) -> DeviceKey:
        return device_key(self.limits, self.name, self.compute_units, arch=self.arch)

    def device(self, name: str) -> Device:
        """Return the device, which is called `name`. The host part of its code never runs where it is a board's: a
        board is sent launches."""
        target = gpu_target(self.limits, host_target(1))
        return Device(name, target, self.key, 1, max(self.cache_bytes, LEAST_CACHE_BYTES), self.memory_bytes)
