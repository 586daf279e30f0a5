"""How scheduled functions are compiled, the same for measuring and for deployment. Start at `build`."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from templates.vector_math import with_vector_math


def build(func: tirx.PrimFunc, target: Target) -> Any:
    """Compile a scheduled function and return the compiled module. Raises what TVM raises."""
    with lowering_context():
        return tvm.tirx.build(with_vector_math(func, target), target=target)


def lowering_context(*instruments: Any) -> tvm.transform.PassContext:
    """Return the pass context to compile kernels in, which `instruments` of TVM's watch.

    Argument checks are off: they would take a third of the compile time, and our callers pass correct arguments. TVM's
    elimination of common subexpressions is off: it takes a tenth of the compile time and changes no kernel's speed, as
    LLVM does the same. Copies are asynchronous only where a schedule asks for it (templates.gpu.stages.overlap_copies).
    """
    config = {"tirx.disable_assert": True, "tirx.disable_cse_tir": True, "tirx.use_async_copy": True}
    return tvm.transform.PassContext(config=config, instruments=list(instruments))
