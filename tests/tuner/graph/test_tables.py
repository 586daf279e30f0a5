"""Quantised networks look up activations in tables, and move bytes where they were written to move real numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, calls, run
from tests.tuner.graph.quantised import DETECTOR_SHAPE, assert_within_a_step, detecting, quantise
from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.graph.fusion.steps import PlainStep
from tuner.graph.ir.bindings import dtype_of
from tuner.graph.ir.simplify import is_call

pytestmark = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detector")
    return quantise(detecting(folder / "float.onnx"), folder / "net.onnx", DETECTOR_SHAPE)


def _plain(graph: FusedGraph, *names: str) -> list[PlainStep]:
    return [s for s in graph.steps if isinstance(s, PlainStep) and is_call(s.value, *names)]


def test_each_activation_is_a_table(detector: Path) -> None:
    graph = fuse(load_onnx(detector), integers=True)
    assert len(_plain(graph, "take")) == 4
    assert not _plain(graph, "sigmoid")
    assert len(_plain(fuse(load_onnx(detector)), "sigmoid")) == 4  # where nothing multiplies integers


def test_bytes_are_moved(detector: Path) -> None:
    moves = _plain(fuse(load_onnx(detector), integers=True), "strided_slice", "concat", "image.resize2d")
    assert len(moves) == 5
    assert {dtype_of(s.out) for s in moves} == {INTEGERS}


def test_nothing_is_laid_out_anew(detector: Path) -> None:
    named = calls(fuse(load_onnx(detector), integers=True), host_target())
    assert sum("to_plain" in name or "to_blocked" in name for name in named) == 1  # the result
    assert not any("sigmoid" in name for name in named)


@pytest.mark.parametrize("optimised", [True, False])
def test_results_are_those_of_onnxruntime(detector: Path, optimised: bool) -> None:
    """A number that lies between two steps may be rounded to either, and moves the next layer's results by a step."""
    assert_within_a_step(detector, DETECTOR_SHAPE, optimised=optimised)


def _written(kinds: list[tuple[str, dict[str, Any]]], path: Path, scales: tuple[float, ...] = (0.05,)) -> Path:
    """A model whose bytes, with a scale of 0.05 and a zero point of 120, go through operators that are quantised with
    other scales behind each."""
    net = Net()
    x, before = net.input(1, 4, 8, 8, dtype=TensorProto.UINT8), 0.05
    zero = net.constant(np.array(120, np.uint8))
    for (kind, attributes), scale in zip(kinds, [*scales, *[scales[-1]] * len(kinds)], strict=False):
        real = net.op("DequantizeLinear", x, net.scalar(before), zero)
        moved = net.op(kind, *([real, real] if kind == "Concat" else [real]), **attributes)
        x, before = net.op("QuantizeLinear", moved, net.scalar(scale), zero), scale
    return net.save_untyped(path, x)


def _both(path: Path) -> tuple[FusedGraph, np.ndarray, np.ndarray]:
    """The graph, what it computes of all bytes, and what onnxruntime computes of them."""
    data = np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)
    graph = fuse(load_onnx(path), integers=True)
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": data})
    (result,) = run(graph, host_target(), {"x": data}).values()
    return graph, result, wanted


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Softplus", "Elu", "HardSwish", "LeakyRelu"])
def test_every_byte_of_a_function(tmp_path: Path, kind: str) -> None:
    """Of the 256 values at most two are rounded to the other side."""
    _, result, wanted = _both(_written([(kind, {}), ("Sigmoid", {})], tmp_path / "net.onnx", (0.03, 0.01)))
    apart = np.abs(result.astype(int) - wanted)
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 2


def test_softmax_is_no_table(tmp_path: Path) -> None:
    graph, result, wanted = _both(_written([("Softmax", {"axis": 1})], tmp_path / "net.onnx", (1 / 128,)))
    assert not _plain(graph, "take")
    assert np.abs(result.astype(int) - wanted).max() <= 1


def test_a_move_between_equal_scales_is_of_bytes_alone(tmp_path: Path) -> None:
    kinds = [("Concat", {"axis": 2}), ("Transpose", {"perm": [0, 2, 3, 1]}), ("Flatten", {})]
    graph, result, wanted = _both(_written(kinds, tmp_path / "net.onnx"))
    np.testing.assert_array_equal(result, wanted)
    assert {dtype_of(s.out) for s in graph.steps} == {INTEGERS}


def test_a_concatenation_may_have_another_scale(tmp_path: Path) -> None:
    graph, result, wanted = _both(_written([("Concat", {"axis": 1})], tmp_path / "net.onnx", (0.07,)))
    np.testing.assert_array_equal(result, wanted)
    (joined,) = _plain(graph, "concat")
    assert dtype_of(joined.out) == INTEGERS


def test_a_real_number_that_is_read_elsewhere_stays(tmp_path: Path) -> None:
    net = Net()
    x, zero = net.input(1, 4, 8, 8, dtype=TensorProto.UINT8), net.constant(np.array(120, np.uint8))
    real = net.op("Sigmoid", net.op("DequantizeLinear", x, net.scalar(0.05), zero))
    byte = net.op("QuantizeLinear", real, net.scalar(1 / 256), net.constant(np.array(0, np.uint8)))
    path = net.save_untyped(tmp_path / "net.onnx", real, byte)
    data = np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)
    wanted = onnxruntime.InferenceSession(str(path)).run(None, {"x": data})
    results = list(run(fuse(load_onnx(path), integers=True), host_target(), {"x": data}).values())
    np.testing.assert_allclose(results[0], wanted[0], rtol=1e-4)
    assert np.abs(results[1].astype(int) - wanted[1]).max() <= 1
