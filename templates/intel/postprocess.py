"""What TVM's OpenCL code lacks of Intel's subgroup extensions, added to the text of a kernel.

TVM lowers buffers of scope "warp" to `intel_sub_group_shuffle` where the target's `thread_warp_size` is the size of a
subgroup, but neither asks the driver for that size nor reads blocks. Only kernels for a target made by
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
    """The target for a kernel whose work-groups have rows of `size` work-items, each row a subgroup.

    Everything else must keep `target` itself: with a warp size TVM puts barriers into divergent flow when it reduces
    across threads.
    """
    return Target({**target.export(), "thread_warp_size": size})


@rewrites_opencl
def with_subgroups(code: str, target: Target) -> str:
    """A kernel's text with the subgroup size it needs; the text itself for a target without a warp size.

    Lanes of a subgroup run in step, so the barriers that TVM puts around "warp" buffers are dropped (they cost, and a
    kernel without local memory needs no others).
    """
    limits, size = gpu_limits(target), int(target.attrs.get("thread_warp_size", 1))
    if limits is None or limits.kind != "opencl" or size not in limits.subgroups:
        return code
    if "__local" not in code:
        code = _BARRIER.sub("", code)
    return _PRELUDE + _DEFINITION.sub(rf"__attribute__((intel_reqd_sub_group_size({size})))\n\1", code)
