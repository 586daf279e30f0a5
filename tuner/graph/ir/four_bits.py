"""Write products by 4-bit matrices as products by matrices of float32, for devices without kernels for the former.

Start at `dequantised_products`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from templates.four_bits import FourBits, dequantised
from tuner.graph.ir.operators import operator_of
from tuner.graph.ir.simplify import as_constant, constant, with_main


def dequantised_products(module: IRModule) -> IRModule:
    """Return a module that has a matrix of float32 wherever it had a 4-bit one."""
    return with_main(_Products(module), module)


@mutator
class _Products(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> relax.Expr:
        call = super().visit_call_(call)
        found = operator_of(call)
        if found is None or found.workload.op != FourBits.op:
            return call
        data, *reads = found.inputs
        values = [constant(value) for value in reads]
        if any(value is None for value in values):
            return call
        matrix = dequantised(FourBits.of(found.workload), *values)
        product = relax.op.matmul(data, as_constant(np.ascontiguousarray(matrix.T)))
        return self.builder_.normalize(product)
