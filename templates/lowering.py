"""How scheduled functions are compiled, the same for measuring and for deployment. Start at `build`."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.target import Target
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from templates.plain_bounds import with_plain_bounds
from templates.rounded_bytes import with_rounded_bytes
from templates.vector_math import with_vector_math
from templates.whole_vectors import with_whole_vectors

# What an array of scope "local" may take of a CPU's stack. Those that registers hold are smaller; threads of musl have
# 128 KiB of stack.
_MOST_STACK_BYTES = 1 << 13
PIPELINE = "edgetune"  # by this name tvm.tirx.build and relax.build find TVM's pipeline with `_on_stack` in it


def build(func: tirx.PrimFunc, target: Target) -> Any:
    """Compile a scheduled function and return the compiled module. Raises what TVM raises."""
    return compiled(finished(func, target), target)


def finished(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return a scheduled function as it is compiled: with functions of vectors, and for a CPU with whole vectors. Work
    items check bounds for themselves."""
    if target.kind.name != "llvm":
        return with_vector_math(func, target)
    return with_whole_vectors(with_plain_bounds(with_vector_math(with_rounded_bytes(func, target), target)))


def compiled(functions: tirx.PrimFunc | IRModule, target: Target, *instruments: Any) -> Any:
    """Compile functions that lack nothing any more, as those of a network's module, and return the compiled module.
    `instruments` of TVM's watch the passes. Raises what TVM raises."""
    with lowering_context(*instruments):
        return tvm.tirx.build(functions, target=target, pipeline=PIPELINE)


def lowering_context(*instruments: Any) -> tvm.transform.PassContext:
    """Return the pass context to compile kernels in, which `instruments` of TVM's watch.

    Argument checks are off: they would take a third of the compile time, and our callers pass correct arguments. TVM's
    elimination of common subexpressions is off: it takes a tenth of the compile time and changes no kernel's speed, as
    LLVM does the same. Copies are asynchronous only where a schedule asks for it (templates.gpu.stages.overlap_copies).
    """
    config = {"tirx.disable_assert": True, "tirx.disable_cse_tir": True, "tirx.use_async_copy": True}
    return tvm.transform.PassContext(config=config, instruments=list(instruments))


def _pipeline() -> tuple[Any, Any, Any]:
    lower, finish_host, finish_devices = default_s_tir_pipeline()
    on_stack = tirx.transform.prim_func_pass(_on_stack, opt_level=0)
    return lower, lambda: tvm.ir.transform.Sequential([on_stack, finish_host()]), finish_devices


register_tir_pipeline(PIPELINE, _pipeline)


def _on_stack(func: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Return a function for a CPU whose small arrays of scope "local" stay on the stack.

    TVM would take their memory from the runtime. LLVM keeps such an array in registers as well, but it cannot know that
    nobody reads the memory: it stores every value there, and clears the memory for every register tile.
    """
    body = tvm_ffi.structural_map(func.body, [(tirx.AllocBuffer, _kept)])
    return func if body.same_as(func.body) else func.with_body(body)


def _kept(allocation: Any) -> Any:
    buffer = allocation.buffer
    if buffer.scope() != "local" or not all(isinstance(n, tirx.IntImm) for n in buffer.shape):
        return allocation
    values = math.prod(int(n) for n in buffer.shape)
    if values * tvm.DataType(str(buffer.dtype)).itemsize > _MOST_STACK_BYTES:
        return allocation
    return tirx.AllocBuffer(buffer, {**allocation.annotations, "disable_lower_builtin": tirx.const(1, "int32")})
