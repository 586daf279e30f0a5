"""The zoo writes the published architectures: parameter counts, multiply-adds, shapes, and outputs of sane size."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tuner import zoo
from tuner.errors import BadInput
from tuner.zoo import randwire

# Learnt parameters (running statistics are not learnt) and multiply-adds at batch 1, as published by torchvision and
# GluonCV; the convolutions' biases are in the former.
PUBLISHED = {
    "resnet18": (11_689_512, 1.814e9),
    "resnet50_v1": (25_557_032, 3.858e9),
    "mobilenet1.0": (4_231_976, 0.569e9),
    "squeezenet1.0": (1_248_424, 0.819e9),
    "inception_v3": (23_834_568, 5.713e9),
    "nasnet_a_mobile": (5_289_978, 0.564e9),
    "nasnet_a_large": (88_753_150, 23.8e9),
}
# Of the paper's table 2, for the mean of random networks.
RANDWIRE = {"randwire_small": (5.6e6, 0.583e9), "randwire": (31.9e6, 4.0e9)}
# Of Darknet's: with the convolutions' biases, of its heads alone.
YOLO3 = 61_949_149, 32.93e9
DETECTORS = {"ssd_300_resnet50_v1": 300, "ssd_512_mobilenet1.0": 512, "yolo3_416": 416}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    return cache(lambda name: zoo.write_model(name, folder / f"{name}.onnx"))


def _multiply_adds(model: onnx.ModelProto) -> int:
    inferred = onnx.shape_inference.infer_shapes(model)
    values = [*inferred.graph.value_info, *inferred.graph.output]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    weights = {i.name: tuple(i.dims) for i in model.graph.initializer}
    total = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            total += int(np.prod(shapes[node.output[0]]) * np.prod(weights[node.input[1]][1:]))
    return total


def _floats(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [i for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]


def test_names_are_the_published_ones():
    others = {"ssd_300_mobilenet1.0", "ssd_512_resnet50_v1", "yolo3_512"}
    assert zoo.names() == sorted(others.union(PUBLISHED, RANDWIRE, DETECTORS))


@pytest.mark.sampled(3)
def test_yolo3_has_the_published_size_and_cost(written):
    model = onnx.load(written("yolo3_416"))
    learnt = [i for i in model.graph.initializer if i.name.endswith((".weight", ".bias"))]
    assert (sum(int(np.prod(i.dims)) for i in learnt), _multiply_adds(model)) == pytest.approx(YOLO3, rel=2e-3)


@pytest.mark.parametrize("name", sorted(RANDWIRE))
def test_randwire_is_about_as_large_as_published(written, name):
    model = onnx.load(written(name))
    weights = [i for i in _floats(model) if not i.name.endswith(("running_mean", "running_var"))]
    size = sum(int(np.prod(i.dims)) for i in weights)
    assert (size, _multiply_adds(model)) == pytest.approx(RANDWIRE[name], rel=0.04)


def test_wires_are_a_rewired_ring():
    one = randwire.wiring(32, np.random.default_rng(0))
    assert one == randwire.wiring(32, np.random.default_rng(0))
    assert one != randwire.wiring(32, np.random.default_rng(1))
    assert sum(map(len, one)) == 32 * randwire.NEIGHBOURS // 2
    assert all(r < node for node, reads in enumerate(one) for r in reads)
    assert len({r for reads in one for r in reads}) > 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_detectors_find_some_boxes(written, name):
    """As many as a trained one finds in a picture: not one for every place."""
    session = onnxruntime.InferenceSession(str(written(name)), providers=["CPUExecutionProvider"])
    size = DETECTORS[name]
    data = np.random.default_rng(1).standard_normal((1, 3, size, size), dtype=np.float32)
    boxes, scores, labels = session.run(None, {"data": data})
    assert boxes.shape[1:] == (4,)
    assert scores.shape == (len(boxes), 1)
    assert labels.shape == (len(boxes), 2)
    assert 5 < len(boxes) < 1000
    assert np.isfinite(boxes).all()
    assert (boxes[:, :2] <= boxes[:, 2:]).all()
    assert ((scores > 0.01) & (scores <= 1)).all()
    assert len(np.unique(labels[:, 1])) > 3
    assert 1 < np.median(boxes[:, 2:] - boxes[:, :2]) < size


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_has_the_published_size_and_cost(written, name):
    model = onnx.load(written(name))
    parameters, multiply_adds = PUBLISHED[name]
    statistics = ("running_mean", "running_var", "ratio")
    learnt = [i for i in _floats(model) if not i.name.endswith(statistics)]
    assert sum(int(np.prod(i.dims)) for i in learnt) == parameters
    assert _multiply_adds(model) == pytest.approx(multiply_adds, rel=2e-3)
    assert [o.version for o in model.opset_import] == [17]
    assert 8 <= model.ir_version <= 10


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted({*PUBLISHED, *RANDWIRE}))
def test_runs_with_outputs_of_sensible_magnitude(written, name):
    session = onnxruntime.InferenceSession(str(written(name)), providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    data = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    (out,) = session.run(None, {"data": data})
    assert out.shape == (1, 1000)
    assert np.isfinite(out).all()
    assert 0.1 < np.abs(out).max() < 100
    assert out.std() > 0.01


def test_batch_normalisation_and_dropout_stay_as_nodes(written):
    ops = {n.op_type for n in onnx.load(written("inception_v3")).graph.node}
    assert {"Conv", "BatchNormalization", "Relu", "AveragePool", "Concat", "Dropout", "Gemm"} <= ops


def test_resnet50_v1_strides_in_the_first_pointwise(written):
    model = onnx.load(written("resnet50_v1"))
    weights = {i.name: tuple(i.dims) for i in model.graph.initializer}
    strided = [n for n in model.graph.node if n.op_type == "Conv" and n.input[0] != "data" and _strides(n) == [2, 2]]
    assert len(strided) == 6  # the first 1x1 and the shortcut of three stages
    assert {weights[n.input[1]][2:] for n in strided} == {(1, 1)}


def _strides(node: onnx.NodeProto) -> list[int]:
    return next(list(a.ints) for a in node.attribute if a.name == "strides")


def test_same_seed_same_bytes_other_seed_other_weights(tmp_path):
    one = zoo.write_model("squeezenet1.0", tmp_path / "a.onnx", seed=3).read_bytes()
    two = zoo.write_model("squeezenet1.0", tmp_path / "b.onnx", seed=3).read_bytes()
    other = zoo.write_model("squeezenet1.0", tmp_path / "c.onnx", seed=4)
    assert one == two
    first = numpy_helper.to_array(onnx.load(other).graph.initializer[0])
    assert not np.array_equal(first, numpy_helper.to_array(onnx.load_from_string(one).graph.initializer[0]))


def test_batch_is_in_every_shape(tmp_path):
    model = onnx.load(zoo.write_model("squeezenet1.0", tmp_path / "m.onnx", batch=3))
    shapes = [v.type.tensor_type.shape.dim[0].dim_value for v in (*model.graph.input, *model.graph.output)]
    assert shapes == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet19", "m.onnx"), "known: inception_v3"),
        (("resnet18", "missing/m.onnx"), "does not exist"),
        (("resnet18", "m.onnx", 0), "at least 1"),
    ],
)
def test_bad_input_writes_nothing(tmp_path: Path, arguments, message):
    name, path, *batch = arguments
    with pytest.raises(BadInput, match=message):
        zoo.write_model(name, tmp_path / path, *batch)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_no_partial_file(tmp_path: Path):
    full = tmp_path / "full.onnx"
    full.mkdir()  # a folder in the way: the rename fails after the content was written
    with pytest.raises(BadInput, match="cannot be written"):
        zoo.write_model("squeezenet1.0", full)
    assert [p.name for p in tmp_path.iterdir()] == ["full.onnx"]
