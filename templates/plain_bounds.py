"""Write bounds that keep what is no number (`templates.bounds`) as TVM's own maxima and minima, for CPUs. Start at
`with_plain_bounds`.

Such a bound binds a variable. TVM simplifies the values of variables again and again, in five times the time for each
bound within another: ten would take a minute. Its code for CPUs compares the operands of a maximum in their order and
takes the second one if either is no number, as the bound does; its code for other devices does not.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def with_plain_bounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function for a CPU that computes the same bounds without variables."""
    body = tvm_ffi.structural_map(func.body, [(tirx.Let, _bounded)])
    return func if body.same_as(func.body) else func.with_body(body)


def _bounded(let: Any) -> Any:
    """Return max(low, value) for a value that is bound to v in Select(v < low, low, v), and a minimum likewise."""
    choice = let.body
    if not isinstance(choice, tirx.Select) or not isinstance(choice.condition, tirx.LT | tirx.GT):
        return let
    less, more = choice.condition.a, choice.condition.b
    if isinstance(choice.condition, tirx.GT):
        less, more = more, less
    bound = choice.true_value
    if not isinstance(bound, tirx.FloatImm) or not choice.false_value.same_as(let.var):
        return let
    if less.same_as(let.var) and more.same_as(bound):
        return tirx.Max(bound, let.value)
    return tirx.Min(bound, let.value) if less.same_as(bound) and more.same_as(let.var) else let
