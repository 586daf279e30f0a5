"""The text of OpenCL kernels, between TVM's code generator and the driver: a hook, and what every template needs there.

Importing this module registers the hook through which TVM passes every OpenCL kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from templates.gpu.limits import gpu_limits
from templates.rewrite import LOCALITY

Rewrite = Callable[[str, Target], str]

_REWRITES: list[Rewrite] = []
_PREFETCH = "edgetune_prefetch"
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


def prefetch(buffer: Any, indices: Sequence[Any]) -> Any:
    """A statement that fetches the cache line of buffer[indices] in OpenCL code for a processor. The address may lie
    outside: nothing is read."""
    address = tirx.address_of(tirx.BufferLoad(buffer, list(indices)))
    return tirx.Evaluate(tirx.call_extern("void", _PREFETCH, address))


@rewrites_opencl
def with_prefetch(code: str, _target: Target) -> str:
    """Say what `prefetch` is. OpenCL's own function of that name does nothing in PoCL; clang's, which drivers for
    processors have, takes no address of global memory without a cast."""
    if _PREFETCH not in code:
        return code
    fetch = f"__builtin_prefetch((const __private void*)(ulong)(address), 0, {LOCALITY})"
    return f"#define {_PREFETCH}(address) {fetch}\n{code}"


def _rewritten(code: str, target: Target) -> str:
    for rewrite in _REWRITES:
        code = rewrite(code, target)
    return code


tvm.register_global_func("tvm_callback_opencl_postproc", _rewritten)
