"""Let the last vector of a row begin so early that it is whole. Start at `with_overlapping_vectors`.

A row of 197 values has twelve vectors of 16 and 5 values more. They are computed as the last 16 values of the row, of
which the vector before has computed 11 already: they become what they are.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from templates.rewrite import depends, with_values


def with_overlapping_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function in which no vectorised loop around a single stage of a row checks where the row ends.

    Every row has to have at least as many values as the loop has lanes. The stages must not read what they write.
    """
    body = tvm_ffi.structural_map(func.body, [(tirx.For, _overlapping)])
    return func if body.same_as(func.body) else func.with_body(body)


def _overlapping(loop: Any) -> Any:
    """Return a vectorised loop whose check `index < end` is gone, as its index is `end` - lanes + lane at most."""
    stage, lane = loop.body, loop.loop_var
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(stage, SBlockRealize):
        return loop
    check = stage.predicate
    if not isinstance(check, tirx.LT) or not depends(check.a, lane):
        return loop
    first = Analyzer().simplify(with_values(check.a, {lane: tirx.const(0, "int32")}))
    shifted = tirx.min(first, check.b - loop.extent) + lane
    values = [shifted if tvm_ffi.structural_equal(value, check.a) else value for value in stage.iter_values]
    whole = SBlockRealize(values, tirx.const(True, "bool"), stage.block)
    return tirx.For(lane, loop.min, loop.extent, loop.kind, whole, loop.thread_binding, loop.annotations)
