"""QDQ models, as onnxruntime's quantizer writes them: products stay in integers, and results are onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.support import host_target
from tests.tuner.graph.networks import calls, run
from tests.tuner.graph.quantised import (
    ATTENTION_SHAPE,
    DECODER_SHAPE,
    RESIDUAL_SHAPE,
    assert_within_a_step,
    attending,
    decoding,
    image,
    quantise,
    residual,
    step_of,
)
from tuner.graph import FusedGraph, OperatorStep, fuse, fuse_for, load_onnx, precisions
from tuner.graph.ir.bindings import Bindings, dtype_of
from tuner.graph.ir.simplify import is_call

QOPERATOR = "qoperator"
needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


@pytest.fixture(scope="module", params=["u8-channels", "s8-channels", "u8-tensors", QOPERATOR])
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    signed, operators = request.param.startswith("s8"), request.param == QOPERATOR
    return quantise(
        residual(folder / "float.onnx"),
        folder / "net.onnx",
        RESIDUAL_SHAPE,
        channels=request.param.endswith("channels"),
        signed=signed,
        operators=operators,
    )


def _graph(path: Path) -> FusedGraph:
    return fuse(load_onnx(path), integers=True)


@needs_dot_products
def test_all_products_are_of_integers(quantized: Path) -> None:
    anchors = _graph(quantized).anchors
    assert [a.workload.dtype for a in anchors] == [INTEGERS] * 5
    assert {a.workload.epilogue[-1] for a in anchors} == {"quantize"}


@needs_dot_products
@pytest.mark.parametrize("optimised", [True, False])
def test_results_are_those_of_onnxruntime(quantized: Path, optimised: bool) -> None:
    """Rounding a number between two steps to either may move the next layer's results by a step, too."""
    assert_within_a_step(quantized, RESIDUAL_SHAPE, optimised=optimised)


@needs_dot_products
def test_images_stay_in_blocks(quantized: Path) -> None:
    """Between the first layer, which reads plain images, and the mean nothing is laid out anew."""
    named = calls(_graph(quantized), host_target())
    assert all(name.startswith(("conv2d", "max_pool", "fused_cast")) for name in named[1:6])
    if QOPERATOR not in str(quantized):
        assert sum("to_plain" in name or "to_blocked" in name for name in named) == 1


def test_without_dot_products_the_same_results_come_from_float32(quantized: Path) -> None:
    graph, data = fuse(load_onnx(quantized)), image(RESIDUAL_SHAPE, 20)
    assert {a.workload.dtype for a in graph.anchors} == {"float32"}
    (wanted,) = onnxruntime.InferenceSession(str(quantized)).run(None, {"x": data})
    (result,) = run(graph, host_target(), {"x": data}).values()
    assert np.abs(result - wanted).max() < 1.5 * step_of(quantized)


DECODERS = {"u8-channels": {}, "s8-channels": {"signed": True}, "u8-tensors": {"channels": False}}


@needs_dot_products
@pytest.mark.parametrize("form", DECODERS)
def test_groups_and_transposed_convolutions_multiply_integers(form: str, tmp_path: Path) -> None:
    path = quantise(decoding(tmp_path / "float.onnx"), tmp_path / "net.onnx", DECODER_SHAPE, **DECODERS[form])
    anchors = _graph(path).anchors
    assert [a.workload.dtype for a in anchors] == [INTEGERS] * 7
    assert [a.workload.epilogue[-1] for a in anchors] == ["quantize"] * 7
    assert_within_a_step(path, DECODER_SHAPE, optimised=form == "u8-channels")


@needs_dot_products
def test_what_a_transposed_convolution_moves_to_pixels_are_bytes(tmp_path: Path) -> None:
    path = quantise(decoding(tmp_path / "float.onnx"), tmp_path / "net.onnx", DECODER_SHAPE)
    module = _graph(path).model.module
    moves = [v for v in Bindings.of(module["main"]).values if is_call(v, "call_tir")]
    assert [dtype_of(v) for v in moves] == [INTEGERS] * 2


@needs_dot_products
def test_groups_of_quantised_operators_multiply_integers(tmp_path: Path) -> None:
    """The quantizer has no operator for transposed convolutions, which stay in float32. Without its optimisation
    onnxruntime computes the same numbers; with it, it is off itself by two steps or three."""
    path = quantise(decoding(tmp_path / "float.onnx"), tmp_path / "net.onnx", DECODER_SHAPE, operators=True)
    graph = _graph(path)
    assert [a.workload.dtype for a in graph.anchors].count(INTEGERS) == 5
    assert precisions(graph).endswith("float32 computes the rest (2)")
    assert_within_a_step(path, DECODER_SHAPE, optimised=False)


@needs_dot_products
@pytest.mark.parametrize("operators", [False, True])
def test_products_of_computed_matrices_multiply_bytes(operators: bool, tmp_path: Path) -> None:
    path = quantise(attending(tmp_path / "float.onnx"), tmp_path / "net.onnx", ATTENTION_SHAPE, operators=operators)
    model = load_onnx(path)
    graph = fuse_for(model, [host_target()])
    products = [step.workload for step in graph.steps if isinstance(step, OperatorStep)]
    assert [(w.op, w.dtype) for w in products] == [("batch_matmul", INTEGERS)] * 2
    assert [w.attrs["transposed"] for w in products] == [not operators, False]  # quantised before or behind
    assert precisions(graph).endswith("and 2 products of computed matrices multiply integers of 8 bits")
    assert_within_a_step(path, ATTENTION_SHAPE, optimised=False)
    floats = fuse_for(model, [host_target()], integers=False).steps
    assert {step.workload.dtype for step in floats if isinstance(step, OperatorStep)} == {"float32"}
