"""Rewrite cumulative sums so that they are right on every GPU. Start at `PortableScans`."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, module_pass

from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import is_call, with_functions


@module_pass(opt_level=0, name="PortableScans")
class PortableScans:
    """Rewrites each inclusive sum along the last axis as the sum of all values before, plus the value itself.

    TVM's kernel for inclusive sums needs the work-items of a warp in lockstep, which OpenCL does not promise: on a
    CPU's OpenCL it gives wrong sums. TVM computes the sums of all values before with barriers alone.
    """

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        return with_functions(_Exclusive(module), module)


@relax.expr_functor.mutator
class _Exclusive(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        shape = shape_of(call.args[0]) if is_call(call, "cumsum") else None
        if shape is None or call.attrs.exclusive or call.attrs.axis is None:
            return call
        if int(call.attrs.axis) % len(shape) != len(shape) - 1:
            return call
        data, dtype = call.args[0], call.attrs.dtype
        before = self.builder_.emit(relax.op.cumsum(data, int(call.attrs.axis), dtype, exclusive=True))
        if str(before.ty.dtype) != str(data.ty.dtype):
            data = self.builder_.emit(relax.op.astype(data, str(before.ty.dtype)))
        return relax.op.add(before, data)
