"""Sums of many terms keep their digits, whatever axes they go along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, run
from tuner.graph import fuse, load_onnx

FOLDS: dict[str, Callable[..., np.ndarray]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
}


def results_of(net: Net, folder: Path, out: str, x: np.ndarray) -> np.ndarray:
    return run(fuse(load_onnx(net.save(folder / "net.onnx", out))), host_target(), {"x": x})[out]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", FOLDS)
@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]])
def test_sums_along_any_axes(tmp_path: Path, axes: list[int], kind: str, keepdims: int) -> None:
    net = Net(opset=18)
    shape = tuple({1: 1500, 2: 50, 3: 20}[len(axes)] if axis in axes else 3 + axis for axis in range(3))
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    out = net.op(kind, net.input(*shape), net.constant(np.array(axes)), keepdims=keepdims)
    wanted = FOLDS[kind](x.astype(np.float64), axis=tuple(axes), keepdims=bool(keepdims))
    np.testing.assert_allclose(results_of(net, tmp_path, out, x), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_a_mean_of_many_equal_numbers_is_that_number(tmp_path: Path) -> None:
    """One chain of additions is off by 1e-3 here: every addition rounds in the same direction."""
    net, shape = Net(), (1, 2, 300, 301)
    out = net.op("ReduceMean", net.input(*shape), axes=[2, 3])
    found = results_of(net, tmp_path, out, np.full(shape, 0.1, np.float32))
    np.testing.assert_allclose(found, np.float32(0.1), rtol=1e-5)


@pytest.mark.parametrize("classes", [70, 1000, 18710])
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_likely_classes_among_very_many(tmp_path: Path, kind: str, classes: int) -> None:
    """Nearly all are equal, so that every addition of one chain rounds in the same direction."""
    net, x = Net(), np.full((2, classes, 3), 0.7, np.float32)
    x[0, 7], x[1, :, 1] = 3.0, np.linspace(-80, 80, classes)
    out = net.op(kind, net.input(*x.shape), axis=1)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    wanted = powers / powers.sum(1, keepdims=True)
    wanted = wanted if kind == "Softmax" else np.log(np.maximum(wanted, 1e-300))
    np.testing.assert_allclose(results_of(net, tmp_path, out, x), wanted, rtol=1e-5, atol=1e-30)


def test_no_class_is_likely_among_what_is_no_number(tmp_path: Path) -> None:
    net, x = Net(), np.zeros((2, 100), np.float32)
    x[0, 3] = np.nan
    found = results_of(net, tmp_path, net.op("Softmax", net.input(2, 100)), x)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], 0.01, rtol=1e-6)


@pytest.mark.parametrize("size", [16, 31, 40, 192, 197, 1000])
@pytest.mark.parametrize("kind", ["LayerNormalization", "InstanceNormalization", "Softmax"])
def test_rows_of_a_large_mean(tmp_path: Path, kind: str, size: int) -> None:
    """The mean of the squares less the square of the mean would have no digit left."""
    net, shape = Net(), (2, 3, size)
    x = np.random.default_rng(size).standard_normal(shape, dtype=np.float32) + np.float32(300)
    wide = x.astype(np.float64)
    rest = wide - wide.mean(-1, keepdims=True)
    wanted = rest / np.sqrt((rest**2).mean(-1, keepdims=True) + 1e-5)
    operands = [net.input(*shape)]
    if kind == "Softmax":
        powers = np.exp(wide - wide.max(-1, keepdims=True))
        wanted = powers / powers.sum(-1, keepdims=True)
    else:
        count = size if kind == "LayerNormalization" else 3
        operands += [net.constant(np.ones(count, np.float32)), net.constant(np.zeros(count, np.float32))]
    found = results_of(net, tmp_path, net.op(kind, *operands), x)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-4)
