"""The pass configuration that scheduled functions are compiled with, the same for measuring and for deployment."""

from __future__ import annotations

import tvm


def lowering_context() -> tvm.transform.PassContext:
    """Return the pass context to compile kernels in.

    Argument checks are off: they would take a third of the compile time, and our callers pass correct arguments. TVM's
    elimination of common subexpressions is off: it takes a tenth of the compile time and changes no kernel's speed, as
    LLVM does the same. Copies are asynchronous only where a schedule asks for it (templates.gpu.stages.overlap_copies).
    """
    config = {"tirx.disable_assert": True, "tirx.disable_cse_tir": True, "tirx.use_async_copy": True}
    return tvm.transform.PassContext(config=config)
