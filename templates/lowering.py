"""How scheduled functions are compiled: one pass configuration for what is measured and for what is deployed."""

from __future__ import annotations

import tvm


def lowering_context() -> tvm.transform.PassContext:
    """The pass context to compile kernels in.

    Argument checks are for callers that may be wrong, and cost a third of the compile time. LLVM eliminates common
    subexpressions itself: TVM's own pass costs a tenth of the compile time and changes no kernel's speed. Copies are
    asynchronous where a schedule says so (templates.gpu.stages.overlap_copies), and nowhere else.
    """
    config = {"tirx.disable_assert": True, "tirx.disable_cse_tir": True, "tirx.use_async_copy": True}
    return tvm.transform.PassContext(config=config)
