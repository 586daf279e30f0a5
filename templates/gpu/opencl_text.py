"""This module rewrites the text of OpenCL kernels between TVM's code generator and the driver.

Importing it registers the hook through which TVM passes every OpenCL kernel. Start at `rewrites_opencl`. The rewrites
that all templates need are here.
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
    """Register a rewrite(code, target) that every OpenCL kernel passes through. Usable as a decorator."""
    _REWRITES.append(rewrite)
    return rewrite


@rewrites_opencl
def with_wide_indices(code: str, target: Target) -> str:
    """Compute addresses in 64 bits on a CPU.

    LLVM folds no constant into an address that is extended from 32 bits. Every load in an unrolled body would take
    three instructions, which doubled the time that was measured.
    """
    limits = gpu_limits(target)
    if limits is None or limits.family != "cpu":
        return code
    return _INDEX.sub(r"((long)\1)", code)


def prefetch(buffer: Any, indices: Sequence[Any]) -> Any:
    """Make a statement that fetches the cache line of buffer[indices] in OpenCL code for a CPU.

    The address may lie outside the buffer, as nothing is read.
    """
    address = tirx.address_of(tirx.BufferLoad(buffer, list(indices)))
    return tirx.Evaluate(tirx.call_extern("void", _PREFETCH, address))


@rewrites_opencl
def with_prefetch(code: str, _target: Target) -> str:
    """Define the function that `prefetch` calls, in kernels that use it.

    It is clang's builtin, which drivers for CPUs have, and which takes an address of global memory only after a cast.
    OpenCL's own prefetch does nothing in PoCL.
    """
    if _PREFETCH not in code:
        return code
    fetch = f"__builtin_prefetch((const __private void*)(ulong)(address), 0, {LOCALITY})"
    return f"#define {_PREFETCH}(address) {fetch}\n{code}"


def _rewritten(code: str, target: Target) -> str:
    for rewrite in _REWRITES:
        code = rewrite(code, target)
    return code


tvm.register_global_func("tvm_callback_opencl_postproc", _rewritten)
