"""Anchors of integers in float32: results are onnxruntime's, and no accuracy is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, run
from tests.tuner.graph.quantised import branching, image, quantise, step_of
from tests.tuner.quantization.conftest import case
from tuner.devices import open_device
from tuner.graph import FusedGraph, float_form, fuse, load_onnx, with_floats
from tuner.module import OnnxReference, build, load

SHAPE = (1, 3, 16, 16)
CHOICES = {"first": "fiiii", "first two": "ffiii", "middle": "iffii", "branches": "iiffi", "one branch": "iifii"}
CHOICES |= {"all": "fffff", "last": "iiiif", "every other": "fifif"}
needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")
pytestmark = needs_dot_products


@pytest.fixture(scope="module", params=["u8-channels", "s8-channels", "u8-tensors", "qoperator"])
def quantised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    kinds = {
        "channels": request.param.endswith("channels"),
        "signed": request.param.startswith("s8"),
        "operators": request.param == "qoperator",
    }
    return quantise(branching(folder / "float.onnx"), folder / "net.onnx", SHAPE, **kinds)


def mixed(graph: FusedGraph, letters: str) -> FusedGraph:
    """The graph with the anchors in float32 that have an "f"."""
    floats = {s.out for s, letter in zip(graph.anchors, letters, strict=True) if letter == "f"}
    return with_floats(graph, lambda step: step.out in floats)


@pytest.mark.parametrize("chosen", CHOICES)
def test_results_are_those_of_onnxruntime_whatever_is_in_float(quantised: Path, chosen: str) -> None:
    graph = mixed(fuse(load_onnx(quantised), integers=True), CHOICES[chosen])
    assert [a.workload.dtype == "float32" for a in graph.anchors] == [c == "f" for c in CHOICES[chosen]]
    data = image(SHAPE, 10)
    (wanted,) = onnxruntime.InferenceSession(str(quantised)).run(None, {"x": data})
    (found,) = run(graph, host_target(), {"x": data}).values()
    assert np.abs(found - wanted).max() < 1.5 * step_of(quantised)


def test_numbers_far_beyond_the_measured_range_are_clipped_as_in_the_file(quantised: Path) -> None:
    graph, data = mixed(fuse(load_onnx(quantised), integers=True), "fffff"), 20 * image(SHAPE, 11)
    (wanted,) = onnxruntime.InferenceSession(str(quantised)).run(None, {"x": data})
    (found,) = run(graph, host_target(), {"x": data}).values()
    assert np.abs(found - wanted).max() < 1.5 * step_of(quantised)


@pytest.mark.parametrize("outlier", [False, True])
def test_floats_never_cost_accuracy(outlier: bool, tmp_path: Path) -> None:
    """Errors against the float network, over samples that it finds classes in: no choice has more than all integers."""
    net = case(tmp_path, outlier=outlier)
    onnx.save(net.quantized().choice.model, file := tmp_path / "q.onnx")
    graph, exact = fuse(load_onnx(file), integers=True), OnnxReference(net.file)
    count = len(graph.anchors)
    choices = ["i" * count, "f" + "i" * (count - 1), "if" * (count // 2) + "i" * (count % 2), "f" * count]
    samples = list(net.samples)
    wanted = [next(iter(exact(sample).values())) for sample in samples]
    noise = []
    for letters in choices:
        build(mixed(graph, letters), open_device("cpu", 1), tmp_path / letters)
        module = load(tmp_path / letters)
        found = [next(iter(module(sample).values())) for sample in samples]
        noise.append(float(np.square(np.subtract(found, wanted)).sum()))
    assert noise[0] > 0
    assert max(noise[1:]) <= 1.02 * noise[0]  # single roundings may fall to either side


def test_scales_that_are_computed_have_no_float_form(tmp_path: Path) -> None:
    net = Net(seed=4)
    data = net.op("DynamicQuantizeLinear", net.input(1, 16, 8, 8), outputs=3)
    weight = net.constant(net.rng.integers(-100, 100, (16, 16, 3, 3), np.int8))
    sums = net.op("ConvInteger", data, weight, f"{data}_2", net.constant(np.array(0, np.int8)), pads=[1] * 4)
    out = net.op("Mul", net.op("Cast", sums, to=onnx.TensorProto.FLOAT), net.op("Mul", f"{data}_1", net.scalar(0.01)))
    graph = fuse(load_onnx(net.save_untyped(tmp_path / "net.onnx", out)), integers=True)
    (anchor,) = graph.anchors
    assert anchor.workload.dtype == INTEGERS
    assert float_form(anchor) is None
    assert with_floats(graph, lambda _: True) is graph
