"""Write attention, as exporters write it in products and softmax, as the operator `attention`. Start at `as_attention`.

The pattern is softmax(scale * queries keys^T + mask) values, with the scale before or behind the first product. Its
transposed form, values^T softmax(...)^T, is that of networks whose tokens lie along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import IRModule, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from templates.attention import Attention, Operand
from tuner.graph.ir.bindings import Bindings, dtype_of, reshaped, shape_of
from tuner.graph.ir.operators import emit_operator
from tuner.graph.ir.simplify import as_constant, constant, is_call, scalar, with_main
from tuner.graph.ir.strided import Strided, before_transposition, permutation, strided

_LEAST_FLOP = 1 << 15
_MOST_COLUMNS = 1 << 14  # more scores of a row would not stay in a cache
_TOKENS_FIRST = [0, 2, 1, 3]

Values = Callable[[Any], Any]


def as_attention(module: IRModule) -> IRModule:
    """Return a module whose attention in float32 is calls of the operator `attention`, which read queries, keys and
    values from where they are, and write the result in the order in which it is read."""
    cleaned = relax.transform.CanonicalizeBindings()(with_main(_Attentions(module), module))
    return relax.transform.DeadCodeElimination(["main"])(cleaned)


@dataclass
class _Scores:
    """The softmax is taken of scale * queries keys^T + the sum of `masks`, each of which has its addition's shape."""

    queries: Any
    keys: Any  # transposed: (..., depth, columns)
    scale: float = 1.0
    masks: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)


@mutator
class _Attentions(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._tokens_first = _read_tokens_first(module["main"])
        self._at: Var | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._at = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> relax.Expr:
        tokens_first = self._at in self._tokens_first
        call = super().visit_call_(call)
        if is_call(call, "permute_dims"):
            return self._twice(call)
        if not is_call(call, "matmul"):
            return call
        found = self._attention(call, tokens_first)
        return call if found is None else found

    def _value_of(self, expr: Any) -> Any:
        return self.lookup_binding(expr) if isinstance(expr, Var) else None

    def _twice(self, call: Any) -> relax.Expr:
        """Return what was transposed before, if this transposition brings it back."""
        before = self._value_of(call.args[0])
        if not is_call(before, "permute_dims"):
            return call
        first, second = permutation(before), permutation(call)
        return before.args[0] if [first[axis] for axis in second] == list(range(len(first))) else call

    def _attention(self, call: Any, tokens_first: bool) -> relax.Expr | None:
        weights, values = call.args
        order, exponents = "btha" if tokens_first else "bhta", _softmax(weights, self._value_of)
        if exponents is None:
            weights, values, order = before_transposition(values, self._value_of), weights, "bhat"
            exponents = None if weights is None else _softmax(weights, self._value_of)
        scores = None if exponents is None else _scores(exponents, self._value_of)
        if scores is None or {dtype_of(x) for x in (scores.queries, scores.keys, values)} != {"float32"}:
            return None
        found = _Problem.of(scores, values, self._value_of, transposed=order == "bhat")
        return None if found is None else self._emitted(call, found, order)

    def _emitted(self, call: Any, found: _Problem, order: str) -> relax.Expr | None:
        view = found.view(order)
        if view.flop < _LEAST_FLOP or view.columns > _MOST_COLUMNS:
            return None
        inputs = [reshaped(self.builder_, operand.source, (operand.size,)) for operand in found.operands()]
        (result,) = emit_operator(self.builder_, view.workload(), inputs)
        if order == "btha":
            result = self.builder_.emit(relax.op.permute_dims(result, _TOKENS_FIRST))
        return reshaped(self.builder_, result, shape_of(call))


def _read_tokens_first(main: relax.Function) -> set[Var]:
    """Return the variables that are read with their second and third of four axes exchanged."""
    bindings = Bindings.of(main)
    return {
        value.args[0]
        for value in bindings.values
        if is_call(value, "permute_dims") and permutation(value) == _TOKENS_FIRST and isinstance(value.args[0], Var)
    }


def _regrouped(expr: Any, value_of: Values) -> Any:
    """Follow an expression back through names and reshapes that keep its last two axes."""
    value = value_of(expr)
    while value is not None:
        if isinstance(value, Var):
            expr = value
        elif is_call(value, "reshape") and _last_two(value) == _last_two(value.args[0]):
            expr = value.args[0]
        else:
            return expr
        value = value_of(expr)
    return expr


def _last_two(expr: Any) -> tuple[int, ...] | None:
    shape = shape_of(expr)
    return shape[-2:] if shape is not None and len(shape) > 1 else None


def _softmax(expr: Any, value_of: Values) -> Any:
    """Return what the softmax along the last axis was taken of, or None if the expression is none."""
    value = value_of(_regrouped(expr, value_of))
    if not is_call(value, "nn.softmax"):
        return None
    rank = len(value.args[0].ty.shape)
    return value.args[0] if rank > 1 and int(value.attrs.axis) % rank == rank - 1 else None


def _scores(expr: Any, value_of: Values) -> _Scores | None:
    """Return the product that scores are made of, with its masks and scale, or None if there is none."""
    masks: list[tuple[Any, tuple[int, ...]]] = []
    scale = 1.0
    while True:
        expr = _regrouped(expr, value_of)
        value = value_of(expr)
        if is_call(value, "matmul"):
            queries, keys = value.args
            return _Scores(queries, keys, scale, masks)
        shape = shape_of(value) if isinstance(value, tvm.ir.Call) else None
        if shape is None:
            return None
        if is_call(value, "add") and scale == 1.0:
            chain, other = _sides(value, shape, value_of)
            if not _is_zero(other):
                masks.append((other, shape))
        elif is_call(value, "multiply", "divide"):
            chain, other = value.args if scalar(value.args[1]) is not None else reversed(value.args)
            factor = scalar(other)
            if not factor or shape_of(chain) != shape or (is_call(value, "divide") and chain is value.args[1]):
                return None
            scale *= factor if is_call(value, "multiply") else 1 / factor
        else:
            return None
        if chain is None:
            return None
        expr = chain


def _is_zero(expr: Any) -> bool:
    value = constant(expr)
    return value is not None and not value.any()


def _sides(call: Any, shape: tuple[int, ...], value_of: Values) -> tuple[Any, Any]:
    """Return the operand of an addition that leads to the product, and the other."""
    for chain, other in (call.args, reversed(call.args)):
        value = value_of(_regrouped(chain, value_of))
        if shape_of(chain) == shape and is_call(value, "matmul", "multiply", "divide", "add"):
            return chain, other
    return None, None


@dataclass(frozen=True)
class _Problem:
    """Holds the operands of an attention as views of four axes: batch, heads, tokens and elements."""

    queries: Strided
    keys: Strided
    values: Strided
    mask: Strided | None
    scale: float

    @classmethod
    def of(cls, scores: _Scores, values: Any, value_of: Values, *, transposed: bool) -> _Problem | None:
        shapes = [shape_of(x) for x in (scores.queries, scores.keys, values)]
        if any(shape is None or len(shape) < 2 for shape in shapes):
            return None
        (*outer, rows, depth), (*inner, _, columns), (*others, _, _) = (shape or () for shape in shapes)
        heads = outer[-1] if outer else 1
        groups = prod(outer) // heads, heads
        if prod(inner) != prod(outer) or prod(others) != prod(outer):
            return None
        queries = _four_axes(scores.queries, groups, value_of)
        keys = _four_axes(scores.keys, groups, value_of, exchanged=True)
        held = _four_axes(values, groups, value_of, exchanged=transposed)
        if queries is None or keys is None or held is None or held.factor != 1:
            return None
        if queries.elements.shape != (*groups, rows, depth) or held.elements.shape[:3] != (*groups, columns):
            return None
        mask = _mask(scores.masks, (*groups, rows, columns), value_of)
        if mask is None and scores.masks:
            return None
        return cls(queries, keys, held, mask, scores.scale * queries.factor * keys.factor)

    def operands(self) -> list[Strided]:
        return [o for o in (self.queries, self.keys, self.values, self.mask) if o is not None]

    def view(self, order: str) -> Attention:
        batch, heads, rows, depth = self.queries.elements.shape
        columns, width = self.values.elements.shape[2:]
        names = ("query", "key", "value", "mask")
        places = {
            name: tuple(Operand(o.size, o.offset, *o.strides)) for name, o in zip(names, self.operands(), strict=False)
        }
        return Attention(batch, heads, rows, columns, depth, width, scale=self.scale, order=order, **places)


def _four_axes(expr: Any, groups: tuple[int, int], value_of: Values, *, exchanged: bool = False) -> Strided | None:
    """Return the view of an operand as (batch, heads, tokens, elements). If `exchanged`, its last two axes are elements
    and tokens. What cannot be viewed like that is read as a whole."""
    last = _last_two(expr)
    for view in (strided(expr, value_of), Strided.whole(expr)):
        four = None if view is None or last is None else view.reshaped((*groups, *last))
        if four is not None:
            return four.with_elements(four.elements.swapaxes(2, 3)) if exchanged else four
    return None


def _mask(masks: list[tuple[Any, tuple[int, ...]]], shape: tuple[int, ...], value_of: Values) -> Strided | None:
    """Return the sum of masks as a view of `shape`: one mask as it is, or the constant sum of several constant ones."""
    if len(masks) == 1 and dtype_of(masks[0][0]) == "float32":
        expr, added = masks[0]
        view = strided(expr, value_of)
        if view is None or view.factor != 1:
            view = Strided.whole(expr)
        if view is None:
            return None
        wide = view.with_elements(np.broadcast_to(view.elements, added))
        return None if wide is None else wide.reshaped(shape)
    arrays = [constant(expr) for expr, _ in masks]
    if not masks or any(array is None or array.dtype != np.float32 for array in arrays):
        return None
    parts = [
        np.broadcast_to(array, added).reshape(shape)
        for array, (_, added) in zip(arrays, masks, strict=True)
        if array is not None
    ]
    total = np.sum(parts, axis=0, dtype=np.float32)
    return Strided.whole(as_constant(np.ascontiguousarray(total)))
