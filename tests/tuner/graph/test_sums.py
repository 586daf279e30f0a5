"""Sums of two quantised tensors are part of the kernel that makes one of them, with the bytes that the file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from templates.cpu.dot_products import products_of
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, calls, run
from tests.tuner.graph.quantised import RESIDUAL_SHAPE, quantise, residual
from tuner.graph import FusedGraph, fuse, load_onnx, with_floats
from tuner.graph.fusion.steps import PlainStep
from tuner.graph.fusion.sums import Step, sum_numbers
from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import is_call

SHAPE = (1, 16, 64, 64)  # as many values as there are pairs of bytes
FIRST, SECOND = (part.reshape(SHAPE) for part in np.meshgrid(np.arange(256), np.arange(256)))
STEPS = {  # scales and zero points of both tensors and of their sum
    "resnet": (Step(0.0437488, 128), Step(0.0398468, 0), Step(0.048956, 0)),
    "coarse": (Step(0.1083815, 135), Step(0.0505339, 119), Step(0.0461497, 3)),
    "powers of two": (Step(0.5, 100), Step(0.25, 7), Step(0.5, 60)),
    "equal": (Step(0.3, 0), Step(0.3, 255), Step(0.3, 128)),
}
IN_THE_MIDDLE = (Step(0.03, 3), Step(0.03, 128), Step(0.06, 0))  # each other sum lies between two steps
needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


def _quantised(net: Net, x: str, step: Step, kind: type) -> str:
    """Quantise real numbers, and make real numbers of the result."""
    zero = step.zero - (128 if kind == np.int8 else 0)
    by = net.scalar(step.scale), net.constant(np.array(zero, kind))
    return net.op("DequantizeLinear", net.op("QuantizeLinear", x, *by), *by)


def _convolution(net: Net, x: str) -> str:
    """Multiply by one: rounding the results takes no step."""
    weight = net.constant(np.eye(SHAPE[1], dtype=np.int8).reshape(*SHAPE[1:2], *SHAPE[1:2], 1, 1))
    by = net.scalar(1.0), net.constant(np.array(0, np.int8))
    return net.op("Conv", x, net.op("DequantizeLinear", weight, *by))


def _summed(
    steps: tuple[Step, Step, Step], folder: Path, *, kind: type = np.uint8, relu: bool = False, rounded: bool = True
) -> Path:
    """Write a file that adds a tensor to a convolution's result, which is quantised before if `rounded`."""
    net, (one, other, result) = Net(), steps
    product = _convolution(net, _quantised(net, net.input(*SHAPE), one, kind))
    first = _quantised(net, product, one, kind) if rounded else product
    total = net.op("Add", _quantised(net, net.input(*SHAPE, name="y"), other, kind), first)
    return net.save(folder / "net.onnx", _quantised(net, net.op("Relu", total) if relu else total, result, kind))


def _all_pairs(steps: tuple[Step, Step, Step]) -> dict[str, np.ndarray]:
    """Return the real numbers of all pairs of bytes."""
    pairs = zip("xy", (FIRST, SECOND), steps, strict=False)
    return {name: ((part - step.zero) * step.scale).astype(np.float32) for name, part, step in pairs}


def _by_onnxruntime(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Compute a file as it is written, operator by operator."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(onnxruntime.InferenceSession(str(path), options).run(None, inputs)[0])


def _sums(graph: FusedGraph) -> int:
    """Count the sums of images that are no part of a kernel with products."""
    added = [s.value.args for s in graph.steps if isinstance(s, PlainStep) and is_call(s.value, "add")]
    return sum(all(shape_of(arg) == SHAPE for arg in args) for args in added)


@needs_dot_products
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_all_pairs_of_bytes_give_what_the_file_says(name: str, relu: bool, kind: type, tmp_path: Path) -> None:
    path, inputs = _summed(STEPS[name], tmp_path, kind=kind, relu=relu), _all_pairs(STEPS[name])
    graph = fuse(load_onnx(path), integers=True)
    (anchor,) = graph.anchors
    behind = ["quantize", "bytes", "add_bytes", *["relu"] * relu, "quantize"]
    assert list(anchor.workload.epilogue[-len(behind) :]) == behind
    assert not _sums(graph)
    (found,) = run(graph, host_target(), inputs).values()
    wanted = _by_onnxruntime(path, inputs)
    assert len(np.unique(wanted)) > 100
    np.testing.assert_array_equal(found, wanted)


@needs_dot_products
def test_a_sum_that_no_numbers_give_is_computed_as_it_is_written(tmp_path: Path) -> None:
    assert sum_numbers(*IN_THE_MIDDLE, is_clipped=False) is None
    path, inputs = _summed(IN_THE_MIDDLE, tmp_path), _all_pairs(IN_THE_MIDDLE)
    graph = fuse(load_onnx(path), integers=True)
    assert _sums(graph) == 1
    (found,) = run(graph, host_target(), inputs).values()
    off = np.abs(found - _by_onnxruntime(path, inputs)) / IN_THE_MIDDLE[-1].scale
    assert off.max() < 1.5


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("is_clipped", [False, True])
def test_numbers_of_a_sum_give_the_right_step_however_products_are_rounded(name: str, is_clipped: bool) -> None:
    one, other, result = STEPS[name]
    numbers = sum_numbers(one, other, result, is_clipped=is_clipped)
    assert numbers is not None
    assert all(float(np.float32(number)) == number for number in numbers)
    v, w = (part.astype(np.float32) for part in (FIRST, SECOND))
    sums = (v - np.float32(one.zero)) * np.float32(one.scale) + (w - np.float32(other.zero)) * np.float32(other.scale)
    steps = np.rint((np.maximum(sums, 0) if is_clipped else sums) / np.float32(result.scale))
    wanted = np.clip(steps + np.float32(result.zero), 0, 255)
    for dtype in (np.float32, np.float64):
        a, b, c = (dtype(number) for number in numbers)
        total = np.asarray(v * a + (w * b + c))
        found = np.rint(np.maximum(total, 0) if is_clipped else total) + np.float32(result.zero)
        np.testing.assert_array_equal(np.clip(found, 0, 255), wanted)


@needs_dot_products
@pytest.mark.parametrize("in_float", [False, True])
def test_bytes_are_added_to_real_numbers(in_float: bool, tmp_path: Path) -> None:
    """Other exporters do not quantise a convolution's result before a sum."""
    steps = STEPS["resnet"]
    path, inputs = _summed(steps, tmp_path, relu=True, rounded=False), _all_pairs(steps)
    graph = fuse(load_onnx(path), integers=True)
    (anchor,) = graph.anchors
    assert [t for t in anchor.workload.epilogue if "bytes" in t] == ["bytes", "add_bytes"]
    assert anchor.workload.epilogue[-1] == "quantize"
    if in_float:
        graph = with_floats(graph, lambda _: True)
        assert [a.workload.dtype for a in graph.anchors] == ["float32"]
    (found,) = run(graph, host_target(), inputs).values()
    off = np.abs(found - _by_onnxruntime(path, inputs)) / steps[-1].scale
    assert off.max() < 1.5
    assert np.count_nonzero(off > 0.5) <= off.size // 1000


@needs_dot_products
@pytest.mark.parametrize("relu", [False, True])
def test_a_sum_behind_a_convolution_in_float(relu: bool, tmp_path: Path) -> None:
    steps = STEPS["coarse"]
    path, inputs = _summed(steps, tmp_path, relu=relu), _all_pairs(steps)
    graph = with_floats(fuse(load_onnx(path), integers=True), lambda _: True)
    assert [a.workload.dtype for a in graph.anchors] == ["float32"]
    (found,) = run(graph, host_target(), inputs).values()
    np.testing.assert_array_equal(found, _by_onnxruntime(path, inputs))


@needs_dot_products
def test_a_result_that_is_read_twice_is_written(tmp_path: Path) -> None:
    net, (one, other, result) = Net(), STEPS["resnet"]
    product = _convolution(net, _quantised(net, net.input(*SHAPE), one, np.uint8))
    first = _quantised(net, product, one, np.uint8)
    total = net.op("Add", first, _quantised(net, net.input(*SHAPE, name="y"), other, np.uint8))
    path = net.save(tmp_path / "net.onnx", _quantised(net, total, result, np.uint8), net.op("Neg", first))
    graph = fuse(load_onnx(path), integers=True)
    assert "bytes" not in graph.anchors[0].workload.epilogue
    assert _sums(graph) == 1


@needs_dot_products
@pytest.mark.parametrize("operators", [False, True])
def test_a_block_has_no_kernel_that_only_adds(operators: bool, tmp_path: Path) -> None:
    path = quantise(residual(tmp_path / "float.onnx"), tmp_path / "net.onnx", RESIDUAL_SHAPE, operators=operators)
    graph = fuse(load_onnx(path), integers=True)
    assert sum("add_bytes" in a.workload.epilogue for a in graph.anchors) == 1
    named = calls(graph, host_target())
    assert [name.partition("_")[0] for name in named[1:6]] == ["conv2d", "max", "conv2d", "conv2d", "conv2d"]
