"""Write products of two matrices that a network computes as the operator `batch_matmul`, which has templates.

Start at `as_batch_matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from templates.batch_matmul import BatchMatmul
from tuner.graph.ir.bindings import dtype_of, reshaped, shape_of
from tuner.graph.ir.operators import emit_operator
from tuner.graph.ir.simplify import constant, is_call, with_main
from tuner.graph.ir.strided import before_transposition

_LEAST_FLOP = 1 << 15  # smaller products are fused with the element-wise operators around them


def as_batch_matmul(module: IRModule) -> IRModule:
    """Return a module whose matrix products in float32 are calls of the operator `batch_matmul`, except for those with
    a constant matrix, which are dense layers, and those that repeat a matrix for several others."""
    return with_main(_Products(module), module)


@dataclass(frozen=True)
class _Product:
    """A product and its operands, which are given the shapes that the operator declares."""

    view: BatchMatmul
    first: Any
    second: Any


@mutator
class _Products(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> relax.Expr:
        call = super().visit_call_(call)
        product = self._product(call) if is_call(call, "matmul") else None
        if product is None:
            return call
        workload = product.view.workload()
        shapes = (product.view.batch, product.view.rows, product.view.depth), product.view.second_shape
        operands = [reshaped(self.builder_, x, s) for x, s in zip((product.first, product.second), shapes, strict=True)]
        (result,) = emit_operator(self.builder_, workload, operands)
        return reshaped(self.builder_, result, shape_of(call))

    def _product(self, call: Any) -> _Product | None:
        first, second = call.args
        left, right = shape_of(first), shape_of(second)
        if left is None or right is None or {dtype_of(first), dtype_of(second)} != {"float32"}:
            return None
        if min(len(left), len(right)) < 2 or (constant(second) is not None and len(right) == 2):
            return None
        (*outer, rows, depth), (*inner, _, columns) = left, right
        if prod(inner) == 1:
            outer, rows = [], prod(outer) * rows
        elif outer != inner:
            return None
        source = before_transposition(second, self._value_of)
        view = BatchMatmul(prod(outer), rows, depth, columns, transposed=source is not None)
        return _Product(view, first, second if source is None else source) if view.flop >= _LEAST_FLOP else None

    def _value_of(self, expr: Any) -> Any:
        return self.lookup_binding(expr) if isinstance(expr, tvm.ir.Var) else None
