"""Replaces TVM's hooks for CUDA. Start at `register`.

TVM's own hook asks the driver for the architecture of device 0 wherever no target is in scope, and none is where a
network is built. Its kernels would be for another GPU than the one named, or would not compile where there is no GPU.
The hook also compiles with --use_fast_math (see `nvrtc`), and imports 6000 lines of headers for a few names.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target

from tuner.devices.cuda.nvrtc import Nvrtc
from tuner.errors import BadInput, CompileError

_BUILD, _COMPILE = "target.build.cuda", "tvm_callback_cuda_compile"

_compiler = cache(Nvrtc)  # once per architecture: the library is searched and loaded


def register() -> None:
    """Have TVM compile CUDA with `compiled`, in this process. TVM's runtime library alone compiles nothing."""
    build = tvm.get_global_func(_BUILD, allow_missing=True)
    if build is None:
        return

    def for_target(module: tvm.IRModule, target: Target) -> Any:
        with target:  # `compiled` reads the target in scope
            return build(module, target)

    for kind in (BadInput, CompileError):  # else TVM raises RuntimeErrors in their place
        tvm_ffi.register_error(kind.__name__, kind)
    tvm_ffi.register_global_func(_BUILD, for_target, override=True)
    tvm_ffi.register_global_func(_COMPILE, compiled, override=True)


def compiled(source: str) -> bytes:
    """Compile kernels to machine code, for the target in scope. Raises BadInput where no compiler here knows its
    architecture, and CompileError."""
    target = Target.current(allow_none=True)
    # A module that was built where there is no driver holds source, and is compiled where it is loaded.
    arch = arch_of(*capability_of(tvm.runtime.device("cuda", 0))) if target is None else str(target.attrs["arch"])
    binary, _ = _compiler(arch).compile(str(source))
    return binary


def capability_of(device: Any) -> tuple[int, int]:
    """Return the compute capability of one of TVM's CUDA devices, major and minor."""
    major, _, minor = str(device.compute_version).partition(".")
    return int(major), int(minor)


def arch_of(major: int, minor: int) -> str:
    """Return the architecture that a compute capability is compiled for. Hopper's own instructions need "sm_90a"."""
    return f"sm_{major}{minor}{'a' if major == 9 else ''}"
