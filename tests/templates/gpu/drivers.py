"""The OpenCL drivers that tests use where they are installed: PoCL (Debian) and Intel's CPU runtime (pip)."""

from __future__ import annotations

import pytest
from tvm.target import Target

from templates.gpu.limits import GpuLimits, gpu_target
from tuner.devices import opencl
from tuner.errors import BadInput

PLATFORMS = {"pocl": "Portable Computing Language", "intel": "Intel(R) OpenCL"}
HOST = Target("llvm")
# A driver here stands for a GPU too: a kernel for a GPU's limits runs on it as well.
LIMITS = {
    "cpu": GpuLimits("opencl", "cpu", 4096, 32768, 16),
    "mali": GpuLimits("opencl", "mali", 256, 16384, 4),
    "intel": GpuLimits("opencl", "intel", 256, 65536, 4),
    "nvidia": GpuLimits("cuda", "nvidia", 1024, 49152, 4),
}
TARGETS = {
    name: gpu_target(limits, HOST, arch="sm_87" if limits.kind == "cuda" else None) for name, limits in LIMITS.items()
}


def device_number(driver: str) -> int:
    """N of "opencl:N" for a driver in PLATFORMS. Skips the test where it is not installed."""
    try:
        found = [d.index for d in opencl.devices() if d.platform == PLATFORMS[driver]]
    except BadInput as missing:
        pytest.skip(str(missing))
    if not found:
        pytest.skip(f"{PLATFORMS[driver]} is not installed")
    return found[0]
