"""Clip numbers and convert them to integers in one function. Start at `ClipToIntegers`.

A bound that keeps what is no number takes a variable of its own (`KeepNaNs`). A quantisation has two of them, and in a
chain of quantisations they lie within each other, which takes TVM minutes to simplify. Integers have no such values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, module_pass

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import is_call, with_functions
from tuner.graph.lowering.emit import INDEX_DTYPE
from tuner.graph.lowering.nans import KEPT


@module_pass(opt_level=0, name="ClipToIntegers")
class ClipToIntegers:
    """Writes a clipping and the conversion to an integer type behind it as one function. What is no number becomes the
    lower bound, as in onnxruntime."""

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        """Change all Relax functions of a module. TVM calls this."""
        return relax.transform.DeadCodeElimination(["main"])(with_functions(_Rewriter(module), module))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not is_call(call, "astype") or not isinstance(call.args[0], tvm.ir.Var):
            return call
        clip, dtype, shape = self.lookup_binding(call.args[0]), str(dtype_of(call)), shape_of(call)
        if not is_call(clip, "clip") or not np.issubdtype(np.dtype(dtype), np.integer) or shape is None:
            return call
        source, low, high = clip.args
        kind = dtype_of(source)
        if kind != "float32":
            return call
        data = te.placeholder(shape, name="data", dtype=kind)
        bounds = [tirx.const(float(getattr(bound, "value", bound)), kind) for bound in (low, high)]

        def steps(*index: Any) -> Any:
            return tirx.min(tirx.max(data(*index), bounds[0]), bounds[1]).astype(dtype)

        stages = [data, te.compute(shape, steps, name="steps")]
        function = te.create_prim_func(stages, index_dtype_override=INDEX_DTYPE).without_attr("global_symbol")
        name = self.builder_.add_func(function.with_attr(KEPT, 1), "quantise")
        return relax.call_tir(name, [source], out_ty=relax.TensorType(shape, dtype))
