"""Find the products of 8-bit integers that a network computes in floating point. Start at `integer_product`.

An importer writes the difference of integers and their zero point, converts it to float32, and multiplies it with a
constant weight of whole numbers. The sums of such products are whole numbers, too. Where they may be larger than
float32 can hold exactly, the importer writes the product in float64; `exact_parts` computes it in float32 by parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import IRModule, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import as_constant, constant, is_call, scalar, with_main

_EXACT = 2**24  # whole numbers up to here are float32 values
_LARGEST = 255  # of a difference of two 8-bit integers
EIGHT_BITS = ("uint8", "int8")
REALS = ("float32", "float64")  # the types that products of integers are written in

ValueOf = Callable[[Any], Any]  # returns the value that a variable is bound to, or None


@dataclass(frozen=True, eq=False)
class Numbers:
    """Integers less their zero point. `values` is a tensor of uint8 or int8, and `zero` is a number, or an expression
    of one float32 or float64 value."""

    values: Any
    zero: Any = 0.0


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """Describes a convolution or matrix product of integers. `weight` has whole numbers, int64, output channels first:
    (K, C / groups, R, S) or (out, in)."""

    call: Any
    numbers: Numbers
    weight: np.ndarray

    @property
    def groups(self) -> int:
        return int(self.call.attrs.groups) if is_call(self.call, "nn.conv2d") else 1

    @property
    def middle(self) -> int | None:
        """Return a number that all weights can be lessened by so that they fit into int8, the one nearest to zero. It
        is None if there is none."""
        low, high = int(self.weight.max(initial=0)) - 127, int(self.weight.min(initial=0)) + 128
        return None if low > high else min(max(low, 0), high)


def integer_product(call: Any, value_of: ValueOf) -> IntegerProduct | None:
    """Return a call of conv2d or matmul as a product of integers, or None if it is anything else."""
    if not is_call(call, "nn.conv2d", "matmul") or dtype_of(call) not in REALS:
        return None
    weight = constant(call.args[1])
    if weight is None or weight.ndim < 2 or (is_call(call, "matmul") and weight.ndim != 2):
        return None
    if weight.size == 0 or np.abs(weight).max() > _LARGEST or (weight != np.rint(weight)).any():
        return None
    numbers = _numbers(call.args[0], value_of)
    if numbers is None:
        return None
    whole = weight.astype(np.int64)
    return IntegerProduct(call, numbers, whole.T if is_call(call, "matmul") else whole)


def _numbers(expr: Any, value_of: ValueOf) -> Numbers | None:
    value = value_of(expr)
    if is_call(value, "astype") and dtype_of(value.args[0]) in EIGHT_BITS and isinstance(value.args[0], Var):
        return Numbers(value.args[0])
    if is_call(value, "astype") and dtype_of(value.args[0]) == "float32":
        return _numbers(value.args[0], value_of)
    if not is_call(value, "subtract"):
        return None
    first, zero = value.args
    known, shape = scalar(zero), shape_of(zero)
    whole = _numbers(first, value_of)
    if whole is None or whole.zero != 0.0 or shape is None or np.prod(shape) != 1:
        return None
    if known is not None:
        return Numbers(whole.values, known) if known == np.rint(known) else None
    source = value_of(zero)  # only integers are known to be whole
    is_whole = is_call(source, "astype") and dtype_of(source.args[0]) in EIGHT_BITS
    return Numbers(whole.values, zero) if is_whole else None


def exact_parts(module: IRModule, keep: Callable[[IntegerProduct], bool] = lambda _: False) -> IRModule:
    """Return a module that computes products of integers in float64 in float32, by parts of the channels that are
    summed over, each of which has an exact sum. Those that `keep` is true of stay as they are."""
    return with_main(_Parts(module, keep), module)


@mutator
class _Parts(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: IRModule, keep: Callable[[IntegerProduct], bool]) -> None:
        super().__init__(module)
        self._keep = keep

    def visit_call_(self, call: Any) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_call(call, "nn.conv2d", "matmul") or dtype_of(call) != "float64":
            return call
        product = integer_product(call, self._value_of)
        return call if product is None or self._keep(product) else self._in_parts(product)

    def _value_of(self, expr: Any) -> Any:
        return self.lookup_binding(expr) if isinstance(expr, Var) else None

    def _in_parts(self, product: IntegerProduct) -> relax.Expr:
        call, weight, emit = product.call, product.weight, self.builder_.emit
        parts = _parts(weight)
        if len(parts) > 1 and product.groups > 1:
            return call
        axis = 1 if is_call(call, "nn.conv2d") else len(call.args[0].ty.shape) - 1
        data, sums = emit(relax.op.astype(call.args[0], "float32")), None
        for first, last in parts:
            piece = data if len(parts) == 1 else emit(relax.op.strided_slice(data, [axis], [first], [last]))
            numbers = weight[:, first:last].astype(np.float32)
            constant_part = as_constant(np.ascontiguousarray(numbers.T if is_call(call, "matmul") else numbers))
            whole = emit(relax.op.astype(emit(tvm.ir.Call(call.op, [piece, constant_part], call.attrs)), "int32"))
            sums = whole if sums is None else emit(relax.op.add(sums, whole))
        return self.builder_.normalize(relax.op.astype(sums, "float64"))


def _parts(weight: np.ndarray) -> list[tuple[int, int]]:
    """Cut the channels that are summed over into as few equal parts as have exact sums. Return the parts' borders."""
    each = np.abs(weight).reshape(*weight.shape[:2], -1).sum(2)  # of each output channel and input channel
    for count in range(1, weight.shape[1] + 1):
        ends = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(weight.shape[1]), count))]).tolist()
        borders = list(pairwise(ends))
        if all(each[:, first:last].sum(1).max() * _LARGEST <= _EXACT for first, last in borders):
            break
    return borders
