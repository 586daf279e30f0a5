"""Look up the values of functions of quantised tensors (`fusion.tables`). Start at `LookUp`."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from templates.cpu.lookup import looks_up_vectors, lookup
from templates.integers import INTEGERS
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import constant, is_call, with_functions
from tuner.graph.lowering.emit import OPAQUE

_VALUES = 256


def is_lookup(call: Any) -> bool:
    """Tell whether a call looks up bytes in a constant table that has all 256."""
    if not is_call(call, "take") or dtype_of(call.args[1]) != INTEGERS or shape_of(call.args[1]) is None:
        return False
    table = constant(call.args[0])
    return table is not None and table.shape == (_VALUES,) and table.dtype == INTEGERS


@module_pass(opt_level=0, name="LookUp")
class LookUp:
    """Makes calls of vectorised functions of lookups, if the target has instructions for them."""

    def __init__(self, target: Target) -> None:
        self._vectors = looks_up_vectors(target)

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        """Change all Relax functions of a module. TVM calls this."""
        return with_functions(_Rewriter(module), module) if self._vectors else module


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not is_lookup(call):
            return call
        table, indices = call.args
        shape = shape_of(indices)
        assert shape is not None
        count = prod(shape)
        if not count:
            return call
        function = lookup(count).without_attr("global_symbol").with_attr("op_pattern", OPAQUE)
        name = self.builder_.add_func(function.with_attr("tirx.is_scheduled", True), "lookup")
        flat = self.builder_.emit(relax.op.reshape(indices, (count,)))
        found = self.builder_.emit(relax.call_tir(name, [table, flat], out_ty=relax.TensorType((count,), INTEGERS)))
        return relax.op.reshape(found, shape)
