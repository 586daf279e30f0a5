"""Write sums of many terms as sums of shorter sums (`folding`), where TVM adds one term after the other. Start at
`LongSums`.

A chain of n additions is off by up to n rounding errors, and by half as many if all terms are equal: a softmax over
18,710 classes is off by 4e-4. Sums of about sqrt(n) terms, which are then added, are off by at most twice the root.
Besides, several sums side by side can be computed as vectors, which a chain cannot.

See Higham, "The accuracy of floating point summation", SIAM Journal on Scientific Computing 14 (4), 1993, sections 2
and 3.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from itertools import groupby
from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, module_pass

from tuner.graph.ir.bindings import dtype_of, reshaped, shape_of
from tuner.graph.ir.simplify import is_call, with_functions
from tuner.graph.lowering.folding import greatest, layer_norm, least, log_softmax, softmax, total, variance

# Shorter sums have digits enough as one chain, into which TVM fuses the operators that make their terms.
_LONG_SUM = 1024
# A softmax or a sum along the last axis is faster as vectors from so many terms on.
_LONG_ROW = 16

_ROWS = ("max", "min", "nn.layer_norm", "nn.log_softmax", "nn.softmax", "variance")
_FOLDED = {"sum": total, "mean": total, "max": greatest, "min": least}

Shape = tuple[int, ...]


@module_pass(opt_level=0, name="LongSums")
class LongSums:
    """Writes sums and means of at least _LONG_SUM terms in float32 as sums of sums. With `rows`, it does the same for
    sums, maxima and minima of at least _LONG_ROW terms along the last axes, variances, softmax, log_softmax and
    layer_norm."""

    def __init__(self, *, rows: bool) -> None:
        self._rows = rows

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        rewriter = _Rewriter(module)
        rewriter.rows = self._rows
        return with_functions(rewriter, module)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    rows = False

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        names = ("sum", "mean", *(_ROWS if self.rows else ()))
        shape = shape_of(call.args[0]) if is_call(call, *names) else None
        if shape is None or dtype_of(call.args[0]) != "float32":
            return call
        if is_call(call, *_FOLDED):
            return self._folded(call, shape)
        if is_call(call, "variance"):
            return self._variance(call, shape)
        return self._layer_norm(call, shape) if is_call(call, "nn.layer_norm") else self._softmax(call, shape)

    def _folded(self, call: Any, shape: Shape) -> Any:
        name, axes = call.op.name.removeprefix("relax."), _axes(call, shape)
        terms = math.prod(shape[axis] for axis in axes)
        is_row = self.rows and _are_last(axes, shape)
        is_sum = name in ("sum", "mean")
        if terms < (_LONG_ROW if is_row else _LONG_SUM) or not (is_row or is_sum):
            return call
        compute, hint = _FOLDED[name], "long_sum" if is_sum else name
        groups = groupby(((n, axis in axes) for axis, n in enumerate(shape) if n > 1), key=operator.itemgetter(1))
        sizes = [(math.prod(n for n, _ in group), is_summed) for is_summed, group in groups]
        value = call.args[0]
        for at in reversed(range(len(sizes))):
            if sizes[at][1]:
                before, behind = (math.prod(n for n, _ in part) for part in (sizes[:at], sizes[at + 1 :]))
                value = reshaped(self.builder_, value, (before, sizes[at][0], behind))
                value = self.builder_.emit(self.builder_.call_te(compute, value, primfunc_name_hint=hint))
                sizes[at] = (1, False)
        value = reshaped(self.builder_, value, shape_of(call))
        return relax.op.divide(value, relax.const(float(terms), "float32")) if name == "mean" else value

    def _variance(self, call: Any, shape: Shape) -> Any:
        axes = _axes(call, shape)
        terms = math.prod(shape[axis] for axis in axes)
        if terms < _LONG_ROW or not _are_last(axes, shape):
            return call
        rows = reshaped(self.builder_, call.args[0], (math.prod(shape) // terms, terms, 1))
        found = self.builder_.emit(self.builder_.call_te(variance, rows, primfunc_name_hint="variance"))
        return reshaped(self.builder_, found, shape_of(call))

    def _layer_norm(self, call: Any, shape: Shape) -> Any:
        axes, attrs = {int(axis) % len(shape) for axis in call.attrs.axes}, call.attrs
        at = min(axes)
        terms = math.prod(shape[at:])
        if terms < _LONG_ROW or not _are_last(axes, shape) or not (attrs.center and attrs.scale):
            return call
        rows = reshaped(self.builder_, call.args[0], (math.prod(shape[:at]), terms, 1))
        scale, shift = (reshaped(self.builder_, value, (terms,)) for value in call.args[1:])
        compute = partial(layer_norm, epsilon=float(attrs.epsilon))
        found = self.builder_.call_te(compute, rows, scale, shift, primfunc_name_hint="layer_norm")
        return reshaped(self.builder_, self.builder_.emit(found), shape)

    def _softmax(self, call: Any, shape: Shape) -> Any:
        axis = int(call.attrs.axis) % len(shape)
        if shape[axis] < _LONG_ROW:
            return call
        rows = reshaped(
            self.builder_, call.args[0], (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        )
        compute, name = (softmax, "softmax") if is_call(call, "nn.softmax") else (log_softmax, "log_softmax")
        return reshaped(
            self.builder_, self.builder_.emit(self.builder_.call_te(compute, rows, primfunc_name_hint=name)), shape
        )


def _axes(call: Any, shape: Shape) -> set[int]:
    """Return the axes that a reduction goes along."""
    axis = call.attrs.axis
    return set(range(len(shape))) if axis is None else {int(at) % len(shape) for at in axis}


def _are_last(axes: set[int], shape: Shape) -> bool:
    return axes == set(range(len(shape) - len(axes), len(shape)))
