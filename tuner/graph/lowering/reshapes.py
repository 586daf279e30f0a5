"""Join reshapes that follow each other. Start at `JoinReshapes`.

TVM makes no copy for a reshape alone, but fuses two of them into a kernel that copies the values.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, module_pass

from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import is_call, with_functions

_RESHAPES = ("expand_dims", "flatten", "reshape", "squeeze")  # they keep the values and their order


@module_pass(opt_level=0, name="JoinReshapes")
class JoinReshapes:
    """Writes a reshape of a reshape as one reshape, and leaves one out that changes nothing."""

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        return relax.transform.DeadCodeElimination(["main"])(with_functions(_Rewriter(module), module))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        shape = shape_of(call) if is_call(call, *_RESHAPES) else None
        if shape is None:
            return call
        source = call.args[0]
        bound: Any = self.lookup_binding(source) if isinstance(source, tvm.ir.Var) else None
        if is_call(bound, *_RESHAPES) and shape_of(bound) is not None:
            source = bound.args[0]
        elif shape_of(source) != shape:
            return call
        return source if shape_of(source) == shape else relax.op.reshape(source, shape)
