"""The default schedule: never a wrong number, and parallel where there is work."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from templates import default
from tests.templates.support import host_target


def _shuffled(x: te.Tensor) -> te.Tensor:
    """A cut of channels that moved to pixels: TVM takes its index for another where the loops over it are fused."""
    shift = te.compute((1, 27, 1, 1), lambda _n, c, _h, _w: x[0, c, 0, 0])
    blocks = topi.reshape(topi.add(x, shift), (2, 3, 3, 3, 6, 6))
    image = topi.reshape(topi.transpose(blocks, (0, 1, 4, 2, 5, 3)), (2, 3, 18, 18))
    return topi.strided_slice(image, [0, 0, 1, 0], [2, 3, 16, 17])


CASES = {
    "softmax": ((3, 100), lambda x: topi.nn.softmax(x)),
    "softmax_odd": ((12, 197), lambda x: topi.nn.softmax(x)),
    "softmax_of_images": ((2, 5, 12, 12), lambda x: topi.abs(topi.nn.softmax(x))),
    "relu_add": ((1, 16, 35, 35), lambda x: topi.add(topi.nn.relu(x), x)),
    "max_pool": ((1, 16, 33, 32), lambda x: topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")),
    "avg_pool": ((1, 16, 35, 35), lambda x: topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "avg")),
    "global_pool": ((1, 64, 7, 7), lambda x: topi.nn.global_pool(x, "avg")),
    "transpose": ((1, 16, 12, 20), lambda x: topi.transpose(x, (0, 2, 3, 1))),
    "argmax": ((4, 100), lambda x: topi.argmax(x, 1)),
    "matmul": ((64, 32), lambda x: topi.matmul(x, topi.transpose(x))),
    "lrn": ((1, 16, 9, 9), lambda x: topi.nn.lrn(x, 5, 1, 0.0001, 0.75, 2)),
    "sum_all": ((10, 33), lambda x: topi.sum(x)),
    "concat": ((1, 12, 13, 13), lambda x: topi.concatenate([x, topi.nn.relu(x)], 1)),
    "cumsum": ((8, 40), lambda x: topi.cumsum(x, 1)),
    "shuffle": ((2, 27, 6, 6), lambda x: _shuffled(x)),
    "scalar": ((), lambda x: te.compute((), lambda: x() + tirx.const(1.0, "float32"))),
}


def _run(func: tirx.PrimFunc, x: np.ndarray) -> list[np.ndarray]:
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    library = tvm.tirx.build(module, target=host_target())
    shapes = [(tuple(int(s) for s in p.ty.shape), str(p.ty.dtype)) for p in func.params[1:]]
    outputs = [tvm.runtime.tensor(np.zeros(shape, dtype)) for shape, dtype in shapes]
    library["main"](tvm.runtime.tensor(x), *outputs)
    return [o.numpy() for o in outputs]


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_same_numbers_as_unscheduled(name: str) -> None:
    shape, compute = CASES[name]
    x = te.placeholder(shape, name="x")
    func = te.create_prim_func([x, compute(x)])
    scheduled = default.schedule(func, host_target())
    assert "tirx.is_scheduled" in scheduled.attrs
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for got, expected in zip(_run(scheduled, data), _run(func, data), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_large_loops_run_parallel_and_vectorised() -> None:
    x = te.placeholder((1, 16, 64, 64), name="x")
    text = default.schedule(te.create_prim_func([x, topi.nn.relu(x)]), host_target()).script()
    assert "T.parallel" in text
    assert "T.vectorized" in text


@pytest.mark.parametrize("length", [64, 100])
def test_a_softmax_goes_through_memory_once(length: int) -> None:
    """All stages of a row are computed where the row is."""
    x = te.placeholder((300, length), name="x")
    text = default.schedule(te.create_prim_func([x, topi.nn.softmax(x)]), host_target()).script()
    assert text.count("T.parallel") == 1


def test_the_last_vector_of_an_odd_row_is_whole() -> None:
    """It begins among the values before, so that no value of a row is computed as a scalar."""
    x = te.placeholder((300, 197), name="x")
    text = default.schedule(te.create_prim_func([x, topi.nn.softmax(x)]), host_target()).script()
    starts = re.findall(r"axis.spatial\(197, T.min\(\w+ \* (\d+), (\d+)\) \+ \w+\)", text)
    assert len(starts) == 2  # powers and their quotients
    assert all(int(lanes) + int(last) == 197 for lanes, last in starts)
    assert "T.where" not in text


def test_scheduled_functions_are_left_alone() -> None:
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, topi.nn.relu(x)]).with_attr("tirx.is_scheduled", True)
    assert default.schedule(func, host_target()).same_as(func)
