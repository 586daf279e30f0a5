"""Where GPU templates are tested: real OpenCL drivers that run on a CPU, and limits of GPUs to compile for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.gpu.limits import GpuLimits, gpu_target
from tests.templates.support import host_target
from tuner.devices.opencl import DeviceInfo, device_info, devices
from tuner.devices.opencl.opening import limits_of
from tuner.errors import BadInput

# What a driver's platform is called, and how to get it.
PLATFORMS = {"pocl": "Portable Computing Language", "intel": "Intel(R) OpenCL"}
_REMEDIES = {"pocl": "apt-get install pocl-opencl-icd", "intel": "pip install 'edgetune[opencl]'"}
# Devices that are not here: their kernels are compiled, or run with their limits on a driver that is.
GPUS = {
    "orin": GpuLimits("cuda", "nvidia", 1024, 49152, 4, (32,), fp16=True, arch="sm_87"),
    "mali": GpuLimits("opencl", "mali", 256, 16384, 4, fp16=True, dots="arm"),
    "intel": GpuLimits("opencl", "intel", 256, 65536, 4, (8, 16, 32), fp16=True, dots="khr"),
    "no_local_memory": GpuLimits("opencl", "other", 128, 0, 4),
}
# A driver for processors, with small vectors.
PROCESSOR = GpuLimits("opencl", "cpu", 4096, 262144, 8)
HOST = host_target()


@dataclass(frozen=True)
class Driver:
    """A device of a driver, with its own limits."""

    info: DeviceInfo

    @property
    def device(self) -> tvm.runtime.Device:
        return tvm.runtime.device("opencl", self.info.index)

    def target(self, limits: GpuLimits | None = None) -> Target:
        """Its target; with other limits, for kernels as they would be on another device."""
        return gpu_target(limits or limits_of(self.info), HOST)

    def like_nvidia(self) -> Target:
        """Kernels as for an Nvidia GPU, that this driver can run: large groups that share local memory."""
        shared = min(49152, self.info.local_memory_bytes)
        return self.target(replace(GPUS["orin"], kind="opencl", subgroups=(), arch="", local_memory_bytes=shared))


def device_number(name: str) -> int:
    """N of "opencl:N" for a driver in PLATFORMS; the test is skipped where it is not installed."""
    try:
        found = next((info.index for info in devices() if info.platform == PLATFORMS[name]), None)
    except BadInput as missing:
        pytest.skip(str(missing))
    if found is None:
        pytest.skip(f"no OpenCL platform {PLATFORMS[name]!r} here: {_REMEDIES[name]}")
    return found


def driver(name: str) -> Driver:
    """The first device of a driver in PLATFORMS; the test is skipped where it is not installed."""
    return Driver(device_info(device_number(name)))


def with_ordinary_copies(func: tirx.PrimFunc, pipelined: str) -> tirx.PrimFunc:
    """A function for CUDA whose copies are asynchronous, in a loop around the stage `pipelined`, as OpenCL can run it:
    in the same order, with the same barriers and two buffers."""
    sch = Schedule(func)
    key = "software_pipeline_async_stages"
    loops = [loop for loop in sch.get_loops(sch.get_sblock(pipelined)) if key in sch.get(loop).annotations]
    assert len(loops) == 1
    sch.unannotate(loops[0], key)
    return sch.mod["main"]


def gpu(name: str) -> Target:
    return gpu_target(GPUS[name], HOST)
