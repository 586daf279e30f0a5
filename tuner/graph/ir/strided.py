"""Follow an expression back through operators that only move values, to the tensor that has the values.

Start at `strided`. What a transposition, a slice or a reshape makes of a tensor is a `Strided` view of it: a template
that reads its operand with strides needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tvm

from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import constant, is_call, scalar

_MOVES = ("broadcast_to", "expand_dims", "permute_dims", "reshape", "squeeze", "strided_slice", "take")


@dataclass(frozen=True)
class Strided:
    """The elements that `elements` has of the tensor `source`, times `factor`.

    `elements` is an array of bytes whose shape and strides, in bytes, are those of the view in elements. Its values are
    never read.
    """

    source: Any
    elements: np.ndarray
    start: int
    factor: float = 1.0

    @classmethod
    def whole(cls, expr: Any) -> Strided | None:
        """Return the view of a whole tensor, or None if its shape is not static."""
        shape = shape_of(expr)
        if shape is None or prod(shape) == 0:
            return None
        elements = np.empty(shape, np.int8)
        return cls(expr, elements, _address(elements))

    @property
    def size(self) -> int:
        """Return how many elements the source has."""
        return prod(shape_of(self.source) or ())

    @property
    def offset(self) -> int:
        """Return which element of the source is the view's first."""
        return _address(self.elements) - self.start

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the step in the source for each axis. It is 0 for axes of one element."""
        return tuple(s if n > 1 else 0 for n, s in zip(self.elements.shape, self.elements.strides, strict=True))

    def with_elements(self, elements: np.ndarray | None) -> Strided | None:
        return None if elements is None else replace(self, elements=elements)

    def reshaped(self, shape: Sequence[int]) -> Strided | None:
        """Return the view with another shape, or None if that is no view of the source."""
        return self.with_elements(without_copy(self.elements, shape))


def without_copy(elements: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
    """Return an array with another shape and the same memory, or None if its values would have to be moved."""
    changed = elements.reshape(shape)
    return changed if np.may_share_memory(changed, elements) else None


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def strided(expr: Any, value_of: Callable[[Any], Any]) -> Strided | None:
    """Return what view of which tensor an expression is; at least it is the view of itself as a whole. Return None if
    its shape is not static. `value_of` returns what a variable is bound to, or None."""
    value = value_of(expr) if isinstance(expr, tvm.ir.Var) else None
    if isinstance(value, tvm.ir.Var):
        return strided(value, value_of)
    moved = _moved(value, value_of) if isinstance(value, tvm.ir.Call) else None
    return moved if moved is not None else Strided.whole(expr)


def _moved(call: Any, value_of: Callable[[Any], Any]) -> Strided | None:
    """Return the view that a call makes of its operand, or None if it does more than move values and scale them."""
    if is_call(call, "multiply", "divide"):
        return _scaled(call, value_of)
    if not is_call(call, *_MOVES):
        return None
    inner = strided(call.args[0], value_of)
    if inner is None:
        return None
    if is_call(call, "permute_dims"):
        return inner.with_elements(inner.elements.transpose(permutation(call)))
    if is_call(call, "strided_slice"):
        return inner.with_elements(_sliced(call, inner.elements))
    if is_call(call, "take"):
        return inner.with_elements(_taken(call, inner.elements))
    shape = shape_of(call)
    if shape is not None and is_call(call, "broadcast_to"):
        return inner.with_elements(np.broadcast_to(inner.elements, shape))
    return None if shape is None else inner.reshaped(shape)


def permutation(call: Any) -> list[int]:
    """Return the axes of a transposition, counted from the first."""
    rank = len(call.args[0].ty.shape)
    if call.attrs.axes is None:
        return list(reversed(range(rank)))
    return [int(axis) % rank for axis in call.attrs.axes]


def before_transposition(expr: Any, value_of: Callable[[Any], Any]) -> Any:
    """Return what an expression is the transposition of, or None if its last two axes alone were not exchanged."""
    value = value_of(expr)
    if not is_call(value, "permute_dims"):
        return None
    axes = permutation(value)
    return value.args[0] if axes == [*range(len(axes) - 2), len(axes) - 1, len(axes) - 2] else None


def _scaled(call: Any, value_of: Callable[[Any], Any]) -> Strided | None:
    left, right = call.args
    if is_call(call, "multiply") and scalar(left) is not None:
        left, right = right, left
    factor = scalar(right)
    inner = strided(left, value_of) if factor and shape_of(left) == shape_of(call) else None
    if inner is None or not factor:
        return None
    return replace(inner, factor=inner.factor * factor if is_call(call, "multiply") else inner.factor / factor)


def _sliced(call: Any, elements: np.ndarray) -> np.ndarray | None:
    """Return the elements of a slice whose steps are 1."""
    try:
        axes, begins, *rest = ([int(field.value) for field in part.fields] for part in call.args[1:])
    except AttributeError:
        return None
    if len(rest) > 1 and any(step != 1 for step in rest[1]):
        return None
    chosen = [slice(None)] * elements.ndim
    for axis, begin in zip(axes, begins, strict=True):
        size, extent = elements.shape[axis], int(call.ty.shape[axis])
        begin = min(max(begin + size if begin < 0 else begin, 0), size)
        chosen[axis] = slice(begin, begin + extent)
    return elements[tuple(chosen)]


def _taken(call: Any, elements: np.ndarray) -> np.ndarray | None:
    """Return the elements at one constant index of an axis."""
    index = constant(call.args[1])
    if index is None or index.ndim > 0 or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % elements.ndim
    position = int(index) % elements.shape[axis]
    return elements[(*[slice(None)] * axis, position)]
