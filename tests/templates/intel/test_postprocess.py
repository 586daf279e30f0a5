"""What is added to a kernel's text, and to whose."""

from __future__ import annotations

import pytest
import tvm

from templates.gpu.limits import GpuLimits, gpu_target
from templates.intel.postprocess import subgroup_target, with_subgroups
from tests.templates.gpu.support import GPUS, HOST, gpu

TARGET = gpu_target(GpuLimits("opencl", "intel", 256, 65536, 4, subgroups=(8, 16)), HOST)
KERNEL = """// Function: main_kernel
__kernel void main_kernel(__global float* restrict a_ptr);
__kernel void main_kernel(__global float* restrict a_ptr) {
  float b[2];
  barrier(CLK_LOCAL_MEM_FENCE);
  a_ptr[0] = intel_sub_group_shuffle(b[0], 1);
}
"""


def test_the_size_is_asked_for_at_the_definition() -> None:
    code = with_subgroups(KERNEL, subgroup_target(TARGET, 8))
    assert (
        "__attribute__((intel_reqd_sub_group_size(8)))\n__kernel void main_kernel(__global float* restrict a_ptr) {"
        in code
    )
    assert code.count("intel_reqd_sub_group_size") == 1
    assert code.startswith("#pragma OPENCL EXTENSION cl_intel_subgroups : enable\n")
    assert "barrier" not in code


def test_barriers_of_local_memory_stay() -> None:
    kernel = KERNEL.replace("float b[2];", "__local float b[2];")
    assert "barrier(CLK_LOCAL_MEM_FENCE);" in with_subgroups(kernel, subgroup_target(TARGET, 16))


@pytest.mark.parametrize("target", [TARGET, *map(gpu, GPUS)], ids=["own", *GPUS])
def test_other_kernels_stay_as_they_are(target: tvm.target.Target) -> None:
    assert with_subgroups(KERNEL, target) == KERNEL


def test_only_the_warp_size_differs() -> None:
    target = subgroup_target(TARGET, 16)
    assert int(target.attrs["thread_warp_size"]) == 16
    assert subgroup_target(target, 1).export() == TARGET.export()


def test_the_hook_is_tvms() -> None:
    assert tvm.get_global_func("tvm_callback_opencl_postproc")(KERNEL, TARGET) == KERNEL
