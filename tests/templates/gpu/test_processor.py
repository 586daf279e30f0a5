"""Element-wise functions for a CPU behind OpenCL are vectors where they read in the order of their writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from templates.default import schedule
from templates.lowering import build
from tests.templates.gpu.support import PLATFORMS, driver

Make = Callable[[], tuple[list[te.Tensor], te.Tensor, Callable[..., np.ndarray]]]


def transposed() -> Any:
    x = te.placeholder((2, 40, 37), name="x")
    return [x], te.compute((2, 37, 40), lambda n, j, i: x[n, i, j]), lambda x: x.transpose(0, 2, 1)


def blocked() -> Any:
    """Channels that do not fill the last block."""
    x = te.placeholder((1, 24, 9, 20), name="x")

    def value(n: tirx.Var, o: tirx.Var, y: tirx.Var, c: tirx.Var, v: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(o * 16 + v < 24, x[n, o * 16 + v, y, c], tirx.const(0, "float32"))

    def expected(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, 8), (0, 0), (0, 0))).reshape(1, 2, 16, 9, 20).transpose(0, 1, 3, 4, 2)

    return [x], te.compute((1, 2, 9, 20, 16), value), expected


def rows(columns: int) -> Make:
    def make() -> Any:
        x, y = (te.placeholder((70, columns), name=name) for name in "xy")
        return [x, y], te.compute((70, columns), lambda i, j: x[i, j] * te.exp(y[i, j])), lambda x, y: x * np.exp(y)

    return make


CASES: dict[str, Make] = {
    "transposed": transposed,
    "blocked": blocked,
    **{f"{columns} columns": rows(columns) for columns in (3, 12, 20, 32, 64, 197)},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_element_wise_functions(platform: str, name: str) -> None:
    found = driver(platform)
    inputs, out, expected = CASES[name]()
    func = schedule(te.create_prim_func([*inputs, out]), found.target()).with_attr("global_symbol", "main")
    kernel = build(func, found.target())
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in tensor.shape]).astype("float32") for tensor in inputs]
    result = tvm.runtime.tensor(np.zeros([int(n) for n in out.shape], "float32"), found.device)
    kernel["main"](*(tvm.runtime.tensor(array, found.device) for array in arrays), result)
    np.testing.assert_allclose(result.numpy(), expected(*arrays), rtol=1e-6)
    source = kernel.imports[0].inspect_source()
    assert ("vload16" in source) == (name in ("32 columns", "64 columns"))
    assert len(source) < 1 << 16
