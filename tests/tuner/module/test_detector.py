"""A detector as a module: as many boxes as the values say, after saving and loading, on the host and on drivers; its
vision operators are tuned, profiled and verified like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.templates.gpu.support import device_number
from tuner.devices import Device, open_device
from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.module import Module, OnnxReference, build, load, operator_errors, random_inputs, verify
from tuner.zoo.builder import GraphBuilder
from tuner.zoo.detection import columns, corners, detections, floats, rows

CLASSES = 3


def write_tiny_detector(path: Path) -> Path:
    """64 places in a picture of 32 by 32 pixels."""
    b = GraphBuilder("detector", np.random.default_rng(0))
    x = b.conv_bn_relu(b.input("data", (1, 3, 32, 32)), "stem", 16, kernel=3, stride=2, padding=1)
    x = b.conv_bn_relu(x, "body", 24, kernel=3, stride=2, padding=1)
    head = rows(b, b.conv(x, "head", 4 + CLASSES, 1, bias=True), 1, 4 + CLASSES)
    y, x = np.meshgrid(4 * np.arange(8), 4 * np.arange(8), indexing="ij")
    centre = b.node("Add", [columns(b, head, 0, 2), floats(b, np.stack([x, y], -1).reshape(1, -1, 2))])
    boxes = corners(b, centre, b.node("Exp", [b.node("Add", [columns(b, head, 2, 4), floats(b, 1.5)])]))
    likely = b.node("Sigmoid", [b.node("Sub", [columns(b, head, 4, 4 + CLASSES), floats(b, 4.5)])])
    outputs = detections(b, boxes, b.node("Transpose", [likely], perm=[0, 2, 1]))
    path.write_bytes(b.model(*outputs).SerializeToString())
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_detector(tmp_path_factory.mktemp("model") / "detector.onnx")


@pytest.fixture(scope="module")
def graph(model: Path) -> FusedGraph:
    return fuse(load_onnx(model))


@pytest.fixture(scope="module", params=["host", "pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "host":
        return open_device("cpu", 1)
    return open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def module(device: Device, graph: FusedGraph, tmp_path_factory: pytest.TempPathFactory) -> Module:
    directory = tmp_path_factory.mktemp("built") / "detector"
    build(graph, device, directory)
    return load(directory)


@pytest.mark.sampled(3)
def test_the_boxes_are_onnxruntimes(module: Module, model: Path) -> None:
    """The same set; their number changes with the picture."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    counts = set()
    for seed in range(4):
        inputs = random_inputs(module.manifest.inputs, seed)
        results = module(inputs)
        wanted = dict(zip(results, session.run(list(results), inputs), strict=True))
        for name, value in wanted.items():
            assert results[name].shape == value.shape
            np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-4)
            counts.add(len(value))
    assert len(counts) > 1
    assert max(counts) < min(shape[0] for shape, _ in module.outputs.values())


def test_it_is_verified_with_its_operators(module: Module, model: Path, graph: FusedGraph) -> None:
    assert max(verify(module, OnnxReference(model), graph=graph).values()) < 1e-4
    errors = operator_errors(module, graph, random_inputs(module.manifest.inputs, 0))
    assert [e.operator.workload.op for e in errors] == ["conv2d"] * 3 + ["compact", "argsort", "nms", "compact"]
    assert max(e.error for e in errors) < 1e-4


def test_its_profile_has_all_of_them(module: Module) -> None:
    calls = module.profile(random_inputs(module.manifest.inputs, 0), runs=2)
    operators = [c.operator.workload.op for c in calls if c.operator is not None]
    assert operators == ["conv2d"] * 3 + ["compact", "argsort", "nms", "compact"]
    assert all(c.seconds > 0 for c in calls)
