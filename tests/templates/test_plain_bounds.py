"""Bounds that keep what is no number compile without variables on CPUs, however many lie within each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from templates.bounds import at_least, at_most, within
from templates.lowering import build, finished
from templates.rewrite import nodes_of
from tests.templates.support import host_target

VALUES = np.array([np.nan, -1, 3, 9, np.inf, -np.inf, 0.5, -0.0], np.float32)


def _function(value: Any) -> tirx.PrimFunc:
    x = te.placeholder((8,), name="x")
    return te.create_prim_func([x, te.compute((8,), lambda i: value(x[i]), name="out")])


def _computed(func: tirx.PrimFunc) -> np.ndarray:
    result = tvm.runtime.tensor(np.zeros(8, np.float32))
    build(func, host_target())["main"](tvm.runtime.tensor(VALUES), result)
    return result.numpy()


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def test_what_is_no_number_is_kept() -> None:
    func = _function(lambda x: within(x, _f32(0), _f32(6)))
    assert not nodes_of(finished(func, host_target()).body, tirx.Let)
    np.testing.assert_array_equal(_computed(func), [np.nan, 0, 3, 6, 6, 0, 0.5, 0])


def test_forty_bounds_within_each_other_compile() -> None:
    """The time went up fivefold with each bound: ten took a minute."""

    def value(x: Any) -> Any:
        for _ in range(20):
            x = at_most(at_least(x * _f32(2) + _f32(1), _f32(-4)), _f32(5)) * _f32(0.5)
        return x

    wanted = VALUES.copy()
    for _ in range(20):
        wanted = np.clip(wanted * 2 + 1, -4, 5) / 2
    np.testing.assert_allclose(_computed(_function(value)), wanted)


def test_other_variables_stay() -> None:
    name = tirx.Var("v", "float32")
    func = _function(lambda x: tirx.Let(name, tirx.convert(x), tirx.Select(name < _f32(0), _f32(7), name)))
    assert len(nodes_of(finished(func, host_target()).body, tirx.Let)) == 1
    np.testing.assert_array_equal(_computed(func), [np.nan, 7, 3, 9, np.inf, 7, 0.5, 0])
