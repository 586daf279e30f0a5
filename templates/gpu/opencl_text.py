"""The text of OpenCL kernels, between TVM's code generator and the driver: a hook, and what every template needs there.

Importing this module registers the hook through which TVM passes every OpenCL kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import tvm
from tvm.target import Target

from templates.gpu.limits import gpu_limits

Rewrite = Callable[[str, Target], str]

_REWRITES: list[Rewrite] = []
_INDEX = re.compile(r"convert_int\((get_(?:group|local)_id\(\d\))\)")


def rewrites_opencl(rewrite: Rewrite) -> Rewrite:
    """Pass every OpenCL kernel through rewrite(code, target), too."""
    _REWRITES.append(rewrite)
    return rewrite


@rewrites_opencl
def with_wide_indices(code: str, target: Target) -> str:
    """Compute addresses in 64 bits on a processor that has them: LLVM folds no constant into an address that is
    extended from 32 bits, so every load in an unrolled body took three instructions (twice the time, measured)."""
    limits = gpu_limits(target)
    if limits is None or limits.family != "cpu":
        return code
    return _INDEX.sub(r"((long)\1)", code)


def _rewritten(code: str, target: Target) -> str:
    for rewrite in _REWRITES:
        code = rewrite(code, target)
    return code


tvm.register_global_func("tvm_callback_opencl_postproc", _rewritten)
