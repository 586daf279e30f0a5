"""Write sums of many terms as sums of shorter sums, where TVM adds one term after the other. Start at `LongSums`.

A chain of n additions is off by up to n rounding errors, and by half as many if all terms are equal: a softmax over
18,710 classes is off by 4e-4. Sums of about sqrt(n) terms, which are then added, are off by at most twice the root.
Besides, several sums side by side can be computed as vectors, which a chain cannot.

See Higham, "The accuracy of floating point summation", SIAM Journal on Scientific Computing 14 (4), 1993, sections 2
and 3.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import groupby
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, module_pass

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import is_call

# Shorter sums have digits enough as one chain, into which TVM fuses the operators that make their terms.
_LONG_SUM = 1024
# A softmax is a function of its own anyway, and vectors make it faster.
_LONG_SOFTMAX = 64
_WIDTH = 16  # numbers in the widest vectors

Shape = tuple[int, ...]


@module_pass(opt_level=0, name="LongSums")
class LongSums:
    """Writes sums and means of at least _LONG_SUM terms in float32 as sums of sums. With `softmax`, it does the same
    for the sums of softmax and log_softmax over at least _LONG_SOFTMAX classes."""

    def __init__(self, *, softmax: bool) -> None:
        self._softmax = softmax

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        rewriter = _Rewriter(module)
        rewriter.softmax = self._softmax
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(name, rewriter.visit_expr(function))
        return rewriter.builder_.get()


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    softmax = False

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        names = ("sum", "mean", *(("nn.softmax", "nn.log_softmax") if self.softmax else ()))
        shape = shape_of(call.args[0]) if is_call(call, *names) else None
        if shape is None or dtype_of(call.args[0]) != "float32":
            return call
        if is_call(call, "sum", "mean"):
            return self._sum(call, shape)
        return self._normalised(call, shape)

    def _sum(self, call: Any, shape: Shape) -> Any:
        axes = range(len(shape)) if call.attrs.axis is None else {int(axis) % len(shape) for axis in call.attrs.axis}
        terms = math.prod(shape[axis] for axis in axes)
        if terms < _LONG_SUM:
            return call
        groups = groupby(((n, axis in axes) for axis, n in enumerate(shape) if n > 1), key=operator.itemgetter(1))
        sizes = [(math.prod(n for n, _ in group), is_summed) for is_summed, group in groups]
        total = call.args[0]
        for at in reversed(range(len(sizes))):
            if sizes[at][1]:
                before, behind = (math.prod(n for n, _ in part) for part in (sizes[:at], sizes[at + 1 :]))
                total = self._reshaped(total, (before, sizes[at][0], behind))
                total = self.builder_.emit(self.builder_.call_te(_total, total, primfunc_name_hint="long_sum"))
                sizes[at] = (1, False)
        total = self._reshaped(total, shape_of(call))
        return total if is_call(call, "sum") else relax.op.divide(total, relax.const(float(terms), "float32"))

    def _normalised(self, call: Any, shape: Shape) -> Any:
        axis = int(call.attrs.axis) % len(shape)
        if shape[axis] < _LONG_SOFTMAX:
            return call
        rows = self._reshaped(call.args[0], (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
        compute, name = (_softmax, "softmax") if is_call(call, "nn.softmax") else (_log_softmax, "log_softmax")
        return self._reshaped(self.builder_.emit(self.builder_.call_te(compute, rows, primfunc_name_hint=name)), shape)

    def _reshaped(self, value: Any, shape: Shape | None) -> Any:
        return value if shape_of(value) == shape else self.builder_.emit(relax.op.reshape(value, shape))


def _total(x: te.Tensor) -> te.Tensor:
    """Sum the terms of (outer, terms, inner), which gives (outer, inner)."""
    return _folded(x, te.sum, operator.add)


def _greatest(x: te.Tensor) -> te.Tensor:
    """Take the largest of the terms of (outer, terms, inner), which gives (outer, inner)."""
    return _folded(x, te.max, tirx.max)


def _folded(x: te.Tensor, fold: Callable[..., Any], join: Callable[[Any, Any], Any]) -> te.Tensor:
    """Fold the terms into about as many partial results as each has terms, then fold these."""
    outer, terms, inner = (int(size) for size in x.shape)
    lanes = min(_WIDTH * max(1, round(math.sqrt(terms) / _WIDTH)), terms)
    whole, rest = divmod(terms, lanes)
    k, v, r = (te.reduce_axis((0, max(n, 1))) for n in (whole, lanes, rest))

    def term(j: Any) -> Any:
        """Return the index of a term. Vectors go along the last axis, or along the terms if that axis has size 1."""
        return k * lanes + j if inner == 1 else j * whole + k

    parts = te.compute((outer, lanes, inner), lambda o, j, i: fold(x[o, term(j), i], axis=k), name="parts")
    folded = te.compute((outer, inner), lambda o, i: fold(parts[o, v, i], axis=v), name="folded")
    if not rest:
        return folded
    last = te.compute((outer, inner), lambda o, i: fold(x[o, whole * lanes + r, i], axis=r), name="last")
    return te.compute((outer, inner), lambda o, i: join(folded[o, i], last[o, i]), name="joined")


def _powers(x: te.Tensor, greatest: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda o, k, i: tirx.exp(x[o, k, i] - greatest[o, i]), name="powers")


def _softmax(x: te.Tensor) -> te.Tensor:
    """Compute a softmax along the second of three axes."""
    powers = _powers(x, _greatest(x))
    total = _total(powers)
    return te.compute(x.shape, lambda o, k, i: powers[o, k, i] / total[o, i], name="softmax")


def _log_softmax(x: te.Tensor) -> te.Tensor:
    """Compute a log_softmax along the second of three axes."""
    greatest = _greatest(x)
    total = _total(_powers(x, greatest))
    return te.compute(x.shape, lambda o, k, i: x[o, k, i] - greatest[o, i] - tirx.log(total[o, i]), name="log_softmax")
