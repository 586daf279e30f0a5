"""Functions for a CPU behind OpenCL are scheduled as for a CPU: element-wise ones are vectors where they read in the
order of their writing, and an item computes whole rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

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


def plain() -> Any:
    """From blocks of channels, scaled."""
    x = te.placeholder((1, 3, 7, 7, 16), name="x")
    out = te.compute((1, 48, 49), lambda n, c, p: x[n, c // 16, p // 7, p % 7, c % 16] * tirx.const(2, "float32"))
    return [x], out, lambda x: 2 * x.transpose(0, 1, 4, 2, 3).reshape(1, 48, 49)


def filled() -> Any:
    """Channels that do not fill the last block, which is filled up with ones: a vector would have to choose."""
    x = te.placeholder((1, 24, 180), name="x")

    def value(n: tirx.Var, o: tirx.Var, p: tirx.Var, v: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(o * 16 + v < 24, x[n, o * 16 + v, p], tirx.const(1, "float32"))

    def expected(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, 8), (0, 0)), constant_values=1).reshape(1, 2, 16, 180).transpose(0, 1, 3, 2)

    return [x], te.compute((1, 2, 180, 16), value), expected


def transposed_in_part() -> Any:
    """One condition for all values of a tile."""
    x = te.placeholder((3, 40, 36), name="x")

    def value(n: tirx.Var, j: tirx.Var, i: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(n < 2, te.exp(x[n, i, j]), tirx.const(7, "float32"))

    def expected(x: np.ndarray) -> np.ndarray:
        return np.where(np.arange(3)[:, None, None] < 2, np.exp(x.transpose(0, 2, 1)), 7)

    return [x], te.compute((3, 36, 40), value), expected


def chosen(axis: int) -> Make:
    """Each value is chosen by its place along an axis: on the last one every lane of a vector chooses by itself."""

    def make() -> Any:
        x = te.placeholder((70, 64), name="x")
        two, zero = tirx.const(2, "float32"), tirx.const(0, "float32")
        out = te.compute((70, 64), lambda *at: tirx.Select(at[axis] < 37, x[at] * two, zero))
        return [x], out, lambda x: np.where(np.indices(x.shape)[axis] < 37, 2 * x, 0)

    return make


def leaky() -> Any:
    x = te.placeholder((70, 64), name="x")
    tenth, zero = tirx.const(0.1, "float32"), tirx.const(0, "float32")
    out = te.compute((70, 64), lambda *at: tirx.Select(x[at] > zero, x[at], x[at] * tenth))
    return [x], out, lambda x: np.where(x > 0, x, x / 10)


def rows(columns: int) -> Make:
    def make() -> Any:
        x, y = (te.placeholder((70, columns), name=name) for name in "xy")
        return [x, y], te.compute((70, columns), lambda i, j: x[i, j] * te.exp(y[i, j])), lambda x, y: x * np.exp(y)

    return make


def centred(columns: int) -> Make:
    """Rows less their means: a stage reads what another has reduced."""

    def make() -> Any:
        x = te.placeholder((70, columns), name="x")
        j = te.reduce_axis((0, columns))
        total = te.compute((70,), lambda i: te.sum(x[i, j], axis=j), name="total")
        out = te.compute((70, columns), lambda i, j: x[i, j] - total[i] / tirx.const(columns, "float32"))
        return [x], out, lambda x: x - x.mean(axis=1, keepdims=True)

    return make


def powers(columns: int) -> Make:
    """A softmax, whose rows of powers an item keeps."""

    def make() -> Any:
        x = te.placeholder((70, columns), name="x")
        return [x], topi.nn.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)

    return make


def column_sums() -> Any:
    x = te.placeholder((3, 50, 64), name="x")
    j = te.reduce_axis((0, 50))
    return [x], te.compute((3, 64), lambda i, k: te.sum(x[i, j, k], axis=j)), lambda x: x.sum(axis=1)


CASES: dict[str, Make] = {
    "transposed": transposed,
    "blocked": blocked,
    "plain": plain,
    "filled": filled,
    "transposed in part": transposed_in_part,
    "chosen by row": chosen(0),
    "chosen by column": chosen(1),
    "leaky": leaky,
    **{f"{columns} columns": rows(columns) for columns in (3, 12, 20, 32, 64, 197)},
    "column sums": column_sums,
    **{f"centred rows of {columns}": centred(columns) for columns in (3, 64, 197)},
    **{f"softmax of {columns}": powers(columns) for columns in (64, 197, 12_000)},
}

# The cases whose rows are whole vectors, or end with one that begins among the values before.
OF_VECTORS = (
    *("transposed", "blocked", "plain", "transposed in part", "chosen by column", "leaky"),
    *("32 columns", "64 columns", "column sums", "centred rows of 64", "centred rows of 197"),
    *("softmax of 64", "softmax of 197", "softmax of 12000"),
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_functions(platform: str, name: str) -> None:
    found = driver(platform)
    inputs, out, expected = CASES[name]()
    func = schedule(te.create_prim_func([*inputs, out]), found.target()).with_attr("global_symbol", "main")
    kernel = build(func, found.target())
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in tensor.shape]).astype("float32") for tensor in inputs]
    result = tvm.runtime.tensor(np.zeros([int(n) for n in out.shape], "float32"), found.device)
    kernel["main"](*(tvm.runtime.tensor(array, found.device) for array in arrays), result)
    np.testing.assert_allclose(result.numpy(), expected(*arrays), rtol=1e-5, atol=1e-6)
    source = kernel.imports[0].inspect_source()
    assert ("vload16" in source) == (name in OF_VECTORS)
    assert len(source) < 1 << 16
