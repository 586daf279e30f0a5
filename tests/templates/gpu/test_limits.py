from __future__ import annotations

import pytest
from tvm.target import Target

from templates.gpu.limits import GpuLimits, gpu_limits, gpu_target

CASES = [
    GpuLimits("opencl", "cpu", 4096, 32768, 16),
    GpuLimits("opencl", "intel", 256, 65536, 4, subgroups=(8, 16, 32), fp16=True),
    GpuLimits("opencl", "mali", 256, 16384, 4, fp16=True, dots="arm"),
    GpuLimits("cuda", "nvidia", 1024, 49152, 4, subgroups=(32,), arch="sm_87"),
]


@pytest.mark.parametrize("limits", CASES, ids=lambda limits: limits.family)
def test_limits_survive_the_targets_text(limits: GpuLimits) -> None:
    target = gpu_target(limits, Target("llvm"))
    assert gpu_limits(target) == limits
    assert gpu_limits(Target(str(target))) == limits
    assert Target(str(target)).host.kind.name == "llvm"


def test_a_cpu_has_no_gpu_limits() -> None:
    assert gpu_limits(Target("llvm")) is None


def test_a_foreign_target_gets_cautious_limits() -> None:
    limits = gpu_limits(Target({"kind": "opencl", "max_threads_per_block": 128}))
    assert limits is not None
    assert (limits.family, limits.max_threads, limits.lanes, limits.subgroups) == ("other", 128, 4, ())


def test_unknown_families_are_refused() -> None:
    with pytest.raises(ValueError, match="voodoo"):
        gpu_target(GpuLimits("opencl", "voodoo", 64, 0, 4))
