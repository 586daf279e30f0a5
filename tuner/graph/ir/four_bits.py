"""Write products by 4-bit matrices as products by matrices of float32, for devices without kernels for the former.

Start at `dequantised_products`. `remark` says what becomes of a model's matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from templates.four_bits import FourBits, dequantised
from tuner.graph.ir.bindings import Bindings
from tuner.graph.ir.model import Model
from tuner.graph.ir.operators import operator_of
from tuner.graph.ir.simplify import as_constant, constant, with_main


def remark(model: Model, kept: bool) -> str:
    """Return a sentence on what becomes of a model's 4-bit matrices, which is empty if it has none. `kept` says whether
    they stay packed."""
    graph = Bindings.of(model.module["main"])
    calls = [found for value in graph.values if (found := operator_of(value)) is not None]
    count = sum(found.workload.op == FourBits.op for found in calls)
    if not count:
        return ""
    what = f"{count} matri{'x' if count == 1 else 'ces'} of 4-bit numbers"
    if kept:
        return f"{what}: packed in memory, float32 in registers"
    return f"{what}: float32 in memory, since only CPUs have kernels for packed ones"


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
        values = [value for read in reads if (value := constant(read)) is not None]
        assert len(values) == len(reads), "the importer takes constant matrices alone"
        matrix = dequantised(FourBits.of(found.workload), *values)
        product = relax.op.matmul(data, as_constant(np.ascontiguousarray(matrix.T)))
        return self.builder_.normalize(product)
