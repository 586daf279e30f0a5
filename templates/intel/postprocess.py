"""This module adds to an OpenCL kernel's text what TVM does not generate for Intel's subgroup extensions.

TVM lowers buffers of scope "warp" to `intel_sub_group_shuffle` if the target's `thread_warp_size` is the size of a
subgroup. It neither requires that size from the driver nor generates block reads. Only kernels for a target made by
`subgroup_target` are changed.
"""

from __future__ import annotations

import re

from tvm.target import Target

from templates.gpu.limits import gpu_limits
from templates.gpu.opencl_text import rewrites_opencl

BLOCK_READ = "edgetune_block_read"
_PRELUDE = f"""#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#define {BLOCK_READ}(p) as_float(intel_sub_group_block_read((const __global uint*)(p)))
"""
_DEFINITION = re.compile(r"^(__kernel void \w+\([^;{]*\) \{)", re.MULTILINE)
_BARRIER = re.compile(r"^\s*barrier\(CLK_LOCAL_MEM_FENCE\);\n", re.MULTILINE)


def subgroup_target(target: Target, size: int) -> Target:
    """Return the target for a kernel whose work-groups consist of rows of `size` work-items, each row a subgroup.

    All other kernels must keep `target` itself: for a target with a warp size, TVM puts barriers into divergent flow
    when it reduces across threads.
    """
    return Target({**target.export(), "thread_warp_size": size})


@rewrites_opencl
def with_subgroups(code: str, target: Target) -> str:
    """Add the required subgroup size to a kernel's text. Text for a target without a warp size is returned unchanged.

    The barriers that TVM puts around "warp" buffers are removed, because lanes of a subgroup run in step and barriers
    take time. A kernel without local memory needs no others.
    """
    limits, size = gpu_limits(target), int(target.attrs.get("thread_warp_size", 1))
    if limits is None or limits.kind != "opencl" or size not in limits.subgroups:
        return code
    if "__local" not in code:
        code = _BARRIER.sub("", code)
    return _PRELUDE + _DEFINITION.sub(rf"__attribute__((intel_reqd_sub_group_size({size})))\n\1", code)
