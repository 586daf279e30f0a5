"""The larger and the smaller of two values, where a NaN stays one.

TVM's own `max` and `min` give the second operand where the first is a NaN, so that a ReLU would make a zero of it. What
is built here is one instruction as well: a processor's maximum gives its second operand, too, and the value is that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx


def at_least(value: Any, low: Any) -> Any:
    """`value`, or `low` where it is less; `low` is no NaN."""
    return _bound(value, lambda v: tirx.Select(v < low, low, v))


def at_most(value: Any, high: Any) -> Any:
    """`value`, or `high` where it is more; `high` is no NaN."""
    return _bound(value, lambda v: tirx.Select(v > high, high, v))


def within(value: Any, low: Any, high: Any) -> Any:
    """`value` between two bounds, which are no NaN."""
    return at_most(at_least(value, low), high)


def largest(one: Any, other: Any) -> Any:
    """The larger of two values; NaN where one of them is."""
    return _bound(one, lambda a: _bound(other, lambda b: tirx.Select(tirx.any(a > b, tirx.isnan(a)), a, b)))


def smallest(one: Any, other: Any) -> Any:
    """The smaller of two values; NaN where one of them is."""
    return _bound(one, lambda a: _bound(other, lambda b: tirx.Select(tirx.any(a < b, tirx.isnan(a)), a, b)))


def _bound(value: Any, body: Callable[[Any], Any]) -> Any:
    """`body` of a value that is computed once, however often it is used."""
    value = tirx.convert(value)  # a slice of a tensor, too
    name = tirx.Var("bounded", value.ty.dtype)
    return tirx.Let(name, value, body(name))
