"""Where GPU templates are tested: real OpenCL drivers that run on a CPU, and limits of GPUs to compile for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import tvm
from tvm.target import Target

from templates.gpu.limits import GpuLimits, gpu_target
from tests.templates.support import host_target
from tuner.devices.opencl import devices

# What a driver's platform is called, and how to get it.
DRIVERS = {
    "Portable Computing Language": "apt-get install pocl-opencl-icd",
    "Intel(R) OpenCL": "pip install 'edgetune[opencl]'",
}
# Devices that are not here: their kernels are compiled, or run with their limits on a driver that is.
GPUS = {
    "orin": GpuLimits("cuda", "nvidia", 1024, 49152, 4, (32,), fp16=True),
    "mali": GpuLimits("opencl", "mali", 256, 16384, 4, fp16=True),
    "intel": GpuLimits("opencl", "intel", 256, 65536, 4, (8, 16, 32), fp16=True),
    "no_local_memory": GpuLimits("opencl", "other", 128, 0, 4),
}


@dataclass(frozen=True)
class Driver:
    """A device of a driver, with its own limits."""

    device: tvm.runtime.Device
    limits: GpuLimits

    def target(self, limits: GpuLimits | None = None) -> Target:
        """Its target; with other limits, for kernels as they would be on another device."""
        return gpu_target(limits or self.limits, host_target())

    def like_nvidia(self) -> Target:
        """Kernels as for an Nvidia GPU, that this driver can run: large groups that share local memory."""
        shared = self.limits.local_memory_bytes
        return self.target(replace(GPUS["orin"], kind="opencl", subgroups=(), local_memory_bytes=min(49152, shared)))


def driver(platform: str) -> Driver:
    """The first device of a driver; the test is skipped where it is not installed."""
    for info in devices():
        if platform in info.platform:
            lanes = max(4, info.native_float_lanes)
            limits = GpuLimits("opencl", "cpu", info.max_work_group_size, info.local_memory_bytes, lanes)
            return Driver(tvm.runtime.device("opencl", info.index), limits)
    pytest.skip(f"no OpenCL platform {platform!r} here: {DRIVERS[platform]}")


def gpu(name: str) -> Target:
    limits = GPUS[name]
    return gpu_target(limits, host_target(), arch="sm_87" if limits.kind == "cuda" else None)
