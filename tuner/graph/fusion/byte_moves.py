"""Move bytes where a quantised network writes that real numbers move. Start at `with_moved_bytes`.

What a quantised network slices, joins or reshapes was converted to real numbers before, and is quantised again behind.
The bytes can be moved instead, which are a fourth, and mostly the second quantisation then returns its own operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, IRModule, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from templates.integers import INTEGERS
from tuner.graph.fusion.tables import EVERY, computed
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import is_call, scalar, with_main

_STEPS = ("astype", "subtract", "multiply", "divide", "round", "add", "clip")  # of conversions, with one number each
_MOVES = (
    "expand_dims", "nn.batch_flatten", "permute_dims", "reshape", "squeeze", "strided_slice",
)  # fmt: skip


def with_moved_bytes(module: IRModule) -> IRModule:
    """Return a module that moves the bytes of quantised tensors before they become real numbers, and that quantises
    the operands of a concatenation in place of its result."""
    module = with_main(_Mover(module), module)
    return relax.transform.CanonicalizeBindings()(module)  # uses of a quantisation that returns its operand


@mutator
class _Mover(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> relax.Expr:
        call = super().visit_call_(call)
        if is_call(call, *_MOVES) or (is_call(call, "image.resize2d") and call.attrs.method == "nearest_neighbor"):
            return self._moved(call)
        if is_call(call, "concat"):
            return self._joined(call)
        if is_call(call, "astype") and dtype_of(call) == INTEGERS and shape_of(call) is not None:
            return self._quantised(call)
        return call

    def _moved(self, call: Any) -> relax.Expr:
        source, steps = self._conversion(call.args[0])
        if not steps or dtype_of(source) != INTEGERS:
            return call
        return self._replayed(Call(call.op, [source, *call.args[1:]], call.attrs), steps)

    def _joined(self, call: Any) -> relax.Expr:
        """Concatenate the bytes of tensors that have the same scale and zero point."""
        found = [self._conversion(item) for item in self._items(call)]
        if not found or any(not steps or dtype_of(source) != INTEGERS for source, steps in found):
            return call
        values = [v for _, steps in found if (v := _values(steps)) is not None]
        if len(values) < len(found) or any(not np.array_equal(v, values[0]) for v in values):
            return call
        whole = self._emit(Call(call.op, [relax.Tuple([source for source, _ in found])], call.attrs))
        return self._replayed(whole, found[0][1])

    def _quantised(self, call: Any) -> relax.Expr:
        source, steps = self._conversion(call)
        if dtype_of(source) == INTEGERS and isinstance(source, Var):
            return source if _is_identity(steps) else call
        joined = self.lookup_binding(source) if isinstance(source, Var) else None
        if joined is None or not is_call(joined, "concat"):
            return call
        items = self._items(joined)
        if any(dtype_of(self._conversion(item)[0]) != INTEGERS for item in items):
            return call
        parts = [self._emit(self._quantised(self._replayed(item, steps))) for item in items]
        return self.builder_.normalize(Call(joined.op, [relax.Tuple(parts)], joined.attrs))

    def _items(self, call: Any) -> Sequence[Any]:
        items = call.args[0]
        return items.fields if isinstance(items, relax.Tuple) else ()

    def _conversion(self, expr: Any) -> tuple[Any, list[Any]]:
        """Return what an expression is computed of by steps of a number each, and these steps' calls in order."""
        steps: list[Any] = []
        while True:
            value = self.lookup_binding(expr) if isinstance(expr, Var) else expr
            if steps and dtype_of(expr) == INTEGERS:
                return expr, steps[::-1]
            if not is_call(value, *_STEPS) or any(
                isinstance(a.ty, relax.TensorType) and scalar(a) is None for a in value.args[1:]
            ):
                return expr, steps[::-1]
            steps.append(value)
            expr = value.args[0]

    def _emit(self, expr: Any) -> Any:
        """Return a variable that holds the expression. Its name is not one of the model's, which name its nodes."""
        return expr if isinstance(expr, Var) else self.builder_.emit(expr, name_hint="moved")

    def _replayed(self, expr: Any, steps: Sequence[Any]) -> relax.Expr:
        """Return the expression behind the same steps."""
        for step in steps:
            expr = Call(step.op, [self._emit(expr), *step.args[1:]], step.attrs)
        return self.builder_.normalize(expr)


def _values(steps: Sequence[Any]) -> np.ndarray | None:
    """Return what the steps make of all bytes."""
    values: np.ndarray | None = EVERY
    with np.errstate(all="ignore"):
        for step in steps:
            assert values is not None
            values = computed(step, {step.args[0]: values})
            if values is None:
                return None
    return values


def _is_identity(steps: Sequence[Any]) -> bool:
    values = _values(steps)
    return values is not None and values.dtype == EVERY.dtype and np.array_equal(values, EVERY)
