"""Maxima and minima that keep a NaN a NaN.

TVM's own `max` and `min` return the second operand if the first is a NaN, so that a ReLU would turn a NaN into zero.
What is built here is one instruction as well: a processor's maximum also returns its second operand for a NaN, and the
value that may be a NaN is put second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx


def bind(value: Any, body: Callable[[Any], Any]) -> Any:
    """Return body(value) with the value bound to a variable, so that it is computed once however often it is used."""
    value = tirx.convert(value)  # it may be a slice of a tensor
    name = tirx.Var("bound", value.ty.dtype)
    return tirx.Let(name, value, body(name))


def at_least(value: Any, low: Any) -> Any:
    """Return `value`, or `low` if `value` is less. `low` must not be NaN."""
    return bind(value, lambda v: tirx.Select(v < low, low, v))


def at_most(value: Any, high: Any) -> Any:
    """Return `value`, or `high` if `value` is more. `high` must not be NaN."""
    return bind(value, lambda v: tirx.Select(v > high, high, v))


def within(value: Any, low: Any, high: Any) -> Any:
    """Return `value` clipped to two bounds, which must not be NaN."""
    return at_most(at_least(value, low), high)


def largest(one: Any, other: Any) -> Any:
    """Return the larger of two values, or NaN if one of them is NaN."""
    return bind(one, lambda a: bind(other, lambda b: tirx.Select(tirx.any(a > b, tirx.isnan(a)), a, b)))


def smallest(one: Any, other: Any) -> Any:
    """Return the smaller of two values, or NaN if one of them is NaN."""
    return bind(one, lambda a: bind(other, lambda b: tirx.Select(tirx.any(a < b, tirx.isnan(a)), a, b)))
