"""This module rewrites the text of CUDA code between TVM's code generator and the compiler.

Importing it registers the hook through which TVM passes all CUDA code. Start at `rewrites_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.target import Target

Rewrite = Callable[[str, Target], str]

_REWRITES: list[Rewrite] = []


def rewrites_cuda(rewrite: Rewrite) -> Rewrite:
    """Register a rewrite(code, target) that all CUDA code passes through. Usable as a decorator."""
    _REWRITES.append(rewrite)
    return rewrite


def _rewritten(code: str, target: Target) -> str:
    for rewrite in _REWRITES:
        code = rewrite(code, target)
    return code


tvm.register_global_func("tvm_callback_cuda_postproc", _rewritten)
