"""Multiply two computed matrices that a quantised network made real numbers of as bytes. Start at `byte_product`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Var

from templates.batch_matmul import BatchMatmul
from templates.integers import INTEGERS, SUMS
from tuner.graph.fusion.integer_chain import dequantised
from tuner.graph.fusion.operands import Operands
from tuner.graph.fusion.steps import OperatorStep, PlainStep, Step
from tuner.graph.ir.bindings import Bindings, shape_of
from tuner.graph.ir.operators import output_types
from tuner.graph.ir.simplify import as_constant, is_call
from tuner.graph.ir.strided import before_transposition


def byte_product(graph: Bindings, step: Step) -> list[Step] | None:
    """Return the steps that multiply the bytes of a product's two operands, and scale the sums. Return None for other
    steps, and where an operand is anything else than bytes that became float32. Sums up to 2^24 are exact."""
    if not isinstance(step, OperatorStep) or (step.workload.op, step.workload.dtype) != (BatchMatmul.op, "float32"):
        return None
    first, second = (dequantised(graph, operand) for operand in step.inputs)
    if first is None or second is None:
        return None
    points = np.array([first.step.zero, second.step.zero])
    if not np.array_equal(points, points.astype(SUMS)):
        return None
    view, matrix, name = BatchMatmul.of(step.workload), second.values, step.out.name
    before, behind = Operands(f"{name}_bytes"), Operands(f"{name}_sums")
    if (source := _before_transposition(graph, matrix)) is not None:
        view = replace(view, transposed=not view.transposed)
        matrix = before.shaped(source, view.second_shape)
    workload = view.workload(INTEGERS)
    sums = Var(f"{name}_sums", *output_types(workload))
    product = OperatorStep(workload, step.node, (first.values, matrix, as_constant(points.astype(SUMS))), sums)
    real: Any = relax.op.astype(sums, "float32")
    if (scale := first.step.scale * second.step.scale) != 1:
        real = relax.op.multiply(behind.emit(real), relax.const(scale, "float32"))
    real = relax.BlockBuilder().normalize(real)
    shaped, converted = ([replace(made, node=step.node) for made in make.steps] for make in (before, behind))
    return [*shaped, product, *converted, PlainStep(step.node, real, step.out)]


def _before_transposition(graph: Bindings, matrices: Any) -> Any:
    """Return what matrices are the transpositions of, which may have more axes before, or None if they are none."""
    value = graph.value_of(matrices)
    if is_call(value, "reshape") and (shape_of(value.args[0]) or ())[-2:] == (shape_of(value) or ())[-2:]:
        matrices = value.args[0]
    return before_transposition(matrices, graph.value_of)
