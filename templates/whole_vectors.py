"""This pass keeps vectors whole where only the last one of a row is cut off. Start at `with_whole_vectors`.

TVM compiles a vectorised loop with a bounds check on its lanes, as for 197 columns in vectors of 16, to one check and
one scalar access for every lane. Here one check, of the lane where it fails first, chooses between the whole vector and
those scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from templates.blocks import coefficient, is_condition
from templates.rewrite import block_with, depends, nodes_of, with_values


def with_whole_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function that checks the bounds of a vectorised loop once for all its lanes where it can."""
    body = tvm_ffi.structural_map(func.body, [(tirx.For, _checked_once)])
    return func if body.same_as(func.body) else func.with_body(body)


def _checked_once(loop: Any) -> Any:
    """Return a vectorised loop around one stage in two versions, between which one check for all lanes chooses. Other
    loops stay as they are, as do those with a check of which no single lane decides."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.body, SBlockRealize):
        return loop
    stage = loop.body
    values = {axis.var: value for axis, value in zip(stage.block.iter_vars, stage.iter_values, strict=True)}
    choices = [c for c in _conditions(stage.block.body) if depends(with_values(c, values), loop.loop_var)]
    terms = _terms([stage.predicate, *(with_values(choice, values) for choice in choices)])
    checks = [term for term in terms if depends(term, loop.loop_var)]
    worst = [_at_worst_lane(check, loop) for check in checks]
    if not checks or any(check is None for check in worst):
        return loop
    lane = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    whole = with_values(_unchecked(stage, values, choices, loop.loop_var), {loop.loop_var: lane})
    vector = tirx.For(lane, loop.min, loop.extent, loop.kind, whole, loop.thread_binding, loop.annotations)
    return tirx.IfThenElse(tirx.all(*worst), vector, loop)


def _unchecked(stage: Any, values: Mapping[Any, Any], choices: Sequence[Any], lane: Any) -> Any:
    """Return a stage, whose axes have these values, without its checks of a lane: those of its predicate and the
    conditions `choices`, but for the terms of both that are about other things."""

    def chosen(call: Any) -> Any:
        if not is_condition(call) or not any(call.args[0].same_as(choice) for choice in choices):
            return call
        others = [term for term in _terms([call.args[0]]) if not depends(with_values(term, values), lane)]
        return tirx.if_then_else(tirx.all(*others), *call.args[1:]) if others else call.args[1]

    body = tvm_ffi.structural_map(stage.block.body, [(tvm.ir.Call, chosen)])
    others = [term for term in _terms([stage.predicate]) if not depends(term, lane)]
    predicate = tirx.all(*others) if others else tirx.const(True, "bool")
    return SBlockRealize(stage.iter_values, predicate, block_with(stage.block, body=body))


def _conditions(body: Any) -> list[Any]:
    """Return the conditions of all choices between two values in a statement."""
    return [call.args[0] for call in nodes_of(body, tvm.ir.Call) if is_condition(call)]


def _terms(conditions: Sequence[Any]) -> list[Any]:
    """Return the terms of conditions that must hold together."""
    found: list[Any] = []
    for condition in conditions:
        found += _terms([condition.a, condition.b]) if isinstance(condition, tirx.And) else [condition]
    return found


def _at_worst_lane(check: Any, loop: Any) -> Any | None:
    """Return a comparison at the lane where it fails if it fails anywhere. Return None where that lane is unknown."""
    if isinstance(check, tirx.LT | tirx.LE):
        growth = coefficient(check.a - check.b, loop.loop_var)
    elif isinstance(check, tirx.GT | tirx.GE):
        growth = coefficient(check.b - check.a, loop.loop_var)
    else:
        return None
    if growth is None:
        return None
    worst = loop.min + loop.extent - 1 if growth > 0 else loop.min
    return Analyzer().simplify(with_values(check, {loop.loop_var: worst}))
