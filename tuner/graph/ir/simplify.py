"""Rewrites that every loaded network goes through, whatever it was loaded from. Start at `simplify`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.graph.ir.bindings import dtype_of, shape_of


def simplify(module: IRModule) -> IRModule:
    """Give a network inference semantics and reduce its kinds of operators.

    Batch normalisation becomes one multiplication and one addition per channel, and dropout disappears. A split becomes
    slices, and a PReLU, a square and a cube become simpler steps. Constants are folded, and dead bindings are removed.
    """
    passes = relax.transform
    module = passes.CanonicalizeBindings()(module)
    module = passes.FoldConstant()(module)
    module = with_main(_Inference(module), module)
    steps = [passes.CanonicalizeBindings(), passes.FoldConstant(), passes.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(steps)(module)


def with_main(rewriter: PyExprMutator, module: IRModule) -> IRModule:
    """Return the module that `rewriter`, a mutator of `module`, makes of it by visiting its function "main"."""
    rewriter.builder_.update_func(module.get_global_var("main"), rewriter.visit_expr(module["main"]))
    return rewriter.builder_.get()


def with_functions(rewriter: PyExprMutator, module: IRModule) -> IRModule:
    """Return the module that `rewriter`, a mutator of `module`, makes of it by visiting all Relax functions."""
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


def constant(expr: Any) -> np.ndarray | None:
    """Return the value of a constant expression, or None if it is no constant."""
    return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None


def scalar(expr: Any) -> float | None:
    """Return the value of a constant of one element, or None for anything else."""
    value = constant(expr)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def as_constant(array: np.ndarray) -> relax.Expr:
    """Return an array as a constant expression of the array's own type. Without a type, relax.const would narrow 64
    bits to 32."""
    return relax.const(array, array.dtype.name)


def is_call(expr: Any, *names: str) -> bool:
    """Return whether an expression calls a Relax operator that has one of these names (given without "relax.")."""
    return (
        isinstance(expr, tvm.ir.Call)
        and isinstance(expr.op, tvm.ir.Op)
        and expr.op.name.removeprefix("relax.") in names
    )


def is_static(ty: Any) -> bool:
    """Return whether `ty` is the type of a tensor whose sizes are all known."""
    return (
        isinstance(ty, relax.TensorType)
        and ty.shape is not None
        and all(isinstance(size, tvm.tirx.IntImm) for size in ty.shape)
    )


def _unchanged(call: Any) -> relax.Expr:
    """Return the operand that a conversion to its own type passes on, or that a constant condition always chooses.
    Return any other call as it is."""
    if is_call(call, "astype"):
        chosen = call.args[0]
    else:
        condition = constant(call.args[0])
        if condition is None or condition.size == 0 or condition.all() != condition.any():
            return call
        chosen = call.args[1] if condition.all() else call.args[2]
    shape = shape_of(call)
    same = shape is not None and (dtype_of(chosen), shape_of(chosen)) == (dtype_of(call), shape)
    return chosen if same else call


@mutator
class _Inference(PyExprMutator):  # type: ignore[misc]
    """Replaces the results of batch_norm, dropout, split, prelu and small powers."""

    def visit_call_(self, call: Any) -> relax.Expr:
        call = super().visit_call_(call)
        if is_call(call, "nn.prelu") and constant(call.args[1]) is not None:
            return self._prelu(call)
        if is_call(call, "astype", "where"):
            return _unchanged(call)
        return self._power(call) if is_call(call, "power") else call

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        source: Any = self.lookup_binding(item.tuple_value) if isinstance(item.tuple_value, tvm.ir.Var) else None
        if item.index == 0 and is_call(source, "nn.dropout"):
            return self.visit_expr(source.args[0])
        if item.index == 0 and is_call(source, "nn.batch_norm") and not source.attrs.training:
            scaled = self._scale_and_shift(source)
            if scaled is not None:
                return scaled
        if is_call(source, "split") and all(is_static(part) for part in source.ty.fields):
            return self._slice(source, item.index)
        return super().visit_tuple_getitem_(item)

    def _power(self, call: Any) -> relax.Expr:
        """Write a square and a cube as products, as onnxruntime computes them; the C library takes ten times as long.
        Every other power stays."""
        base, power = call.args[0], scalar(call.args[1])
        if power not in (2.0, 3.0) or base.ty.dtype != call.ty.dtype or len(base.ty.shape) != len(call.ty.shape):
            return call
        square = relax.op.multiply(base, base)
        if power == 3.0:
            square = relax.op.multiply(self.builder_.emit(square), base)
        return self.builder_.normalize(square)

    def _prelu(self, call: Any) -> relax.Expr:
        """Return x where it is above zero and slope times x where it is below, with one slope per channel."""
        data, slope = call.args[0], constant(call.args[1])
        assert slope is not None
        rank, zero = len(data.ty.shape), relax.const(0, slope.dtype.name)
        wide = slope.reshape([-1 if i == int(call.attrs.axis) % rank else 1 for i in range(rank)])
        below = self.builder_.emit(relax.op.minimum(data, zero))
        scaled = self.builder_.emit(relax.op.multiply(below, as_constant(wide)))
        above = self.builder_.emit(relax.op.nn.relu(data))
        return self.builder_.normalize(relax.op.add(above, scaled))

    def _slice(self, split: Any, index: int) -> relax.Expr:
        """Return one part of a split as a slice."""
        axis = int(split.attrs.axis) % len(split.args[0].ty.shape)
        sizes = [int(part.shape[axis]) for part in split.ty.fields]
        begin = sum(sizes[:index])
        part = relax.op.strided_slice(split.args[0], axes=[axis], begin=[begin], end=[begin + sizes[index]])
        return self.builder_.normalize(part)

    def _scale_and_shift(self, call: Any) -> relax.Expr | None:
        gamma, beta, mean, variance = (constant(a) for a in call.args[1:])
        if gamma is None or beta is None or mean is None or variance is None:
            return None
        scale = 1 / np.sqrt(variance.astype(np.float64) + call.attrs.epsilon)
        if call.attrs.scale:
            scale = scale * gamma
        shift = -mean.astype(np.float64) * scale
        if call.attrs.center:
            shift = shift + beta
        rank = len(call.args[0].ty.shape)
        axis = int(call.attrs.axis) % rank
        shape = [-1 if i == axis else 1 for i in range(rank)]
        dtype = str(call.args[0].ty.dtype)
        data = self.visit_expr(call.args[0])
        scaled = self.builder_.emit(relax.op.multiply(data, as_constant(scale.reshape(shape).astype(dtype))))
        return self.builder_.normalize(relax.op.add(scaled, as_constant(shift.reshape(shape).astype(dtype))))
