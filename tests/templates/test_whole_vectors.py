"""Loops of vectors with bounds checks have whole vectors and compute what they computed before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx
from tvm.target import Target

from templates.lowering import build
from templates.rewrite import nodes_of
from templates.stages import new_schedule
from templates.whole_vectors import with_whole_vectors
from tests.templates.support import host_target


@pytest.fixture(scope="module")
def target() -> Target:
    return host_target()


def vectorised(values: Any, source: Any, lanes: int) -> tirx.PrimFunc:
    """Schedule one stage along its last axis in vectors, the last of which is cut off."""
    sch = new_schedule(te.create_prim_func([source, values]))
    block = sch.get_sblock(values.op.name)
    sch.vectorize(sch.split(sch.get_loops(block)[-1], [None, lanes])[1])
    return sch.mod["main"]


def computed(func: tirx.PrimFunc, target: Target, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    result = tvm.runtime.tensor(np.full(shape, 7, "float32"))
    build(func, target)["main"](tvm.runtime.tensor(array), result)
    return np.asarray(result.numpy())


@given(st.integers(1, 70), st.sampled_from((4, 8, 16)), st.integers(-3, 3), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_any_bounds(target: Target, columns: int, lanes: int, shift: int, read: int) -> None:
    """A row is cut off where the result ends, and what is read lies inside from `shift` on for `read` columns."""
    source = te.placeholder((3, read), name="source")

    def value(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        at = j - shift
        return tirx.if_then_else(tirx.all(at >= 0, at < read, i > 0), source[i, at], 5.0)

    func = vectorised(te.compute((3, columns), value, name="values"), source, lanes)
    array = np.arange(3 * read, dtype="float32").reshape(3, read)
    expected = np.full((3, columns), 5, "float32")
    for j in range(max(shift, 0), min(read + shift, columns)):
        expected[1:, j] = array[1:, j - shift]
    np.testing.assert_array_equal(computed(func, target, array, (3, columns)), expected)


def test_one_check_chooses_the_whole_vector() -> None:
    source = te.placeholder((2, 37), name="source")
    func = vectorised(te.compute((2, 37), lambda i, j: source[i, j] + 1, name="values"), source, 16)
    found = with_whole_vectors(func)
    (choice,) = nodes_of(found.body, tirx.IfThenElse)
    (whole,) = (loop for loop in nodes_of(choice.then_case, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED)
    assert int(whole.body.predicate) == 1
    assert not isinstance(choice.else_case.body.predicate, tirx.IntImm)


def test_loops_that_no_single_lane_decides_stay() -> None:
    source = te.placeholder((2, 64), name="source")
    every_second = te.compute((2, 64), lambda i, j: tirx.if_then_else(j % 2 == 0, source[i, j], 0.0), name="values")
    func = vectorised(every_second, source, 16)
    assert with_whole_vectors(func).same_as(func)
    whole = vectorised(te.compute((2, 64), lambda i, j: source[i, j] + 1, name="values"), source, 16)
    assert with_whole_vectors(whole).same_as(whole)
