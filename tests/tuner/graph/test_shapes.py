"""Free axes of a file's inputs: how they get their sizes, and what is said where they do not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_close, expected, run
from tuner.errors import BadInput
from tuner.graph import fuse, load_onnx

Shapes = Mapping[str, tuple[int, ...]]


def image_net(path: Path, *shape: Any, name: str = "x") -> Path:
    """A convolution, and a reshape that asks for the sizes."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(*shape, name=name), (3, 4), pads=[1, 1, 1, 1]))
    rows = net.op("Concat", net.op("Slice", net.op("Shape", x), *(net.constant(np.array([i])) for i in (0, 2))))
    net.nodes[-1].attribute.append(helper.make_attribute("axis", 0))
    tail = net.op("Concat", rows, net.constant(np.array([-1])), axis=0)
    return net.save(path / "m.onnx", net.op("Reshape", x, tail))


def two_inputs(path: Path, one: tuple, other: tuple) -> Path:
    net = Net()
    return net.save(path / "m.onnx", net.op("Add", net.input(*one, name="a"), net.input(*other, name="b")))


def refused(path: Path, shapes: Shapes | None = None, batch: int | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        load_onnx(path, shapes=shapes, batch=batch)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("free", ["batch", "?", None, -1])
def test_a_batch_that_alone_is_free_is_one_in_one_line(tmp_path: Path, free: str | int | None) -> None:
    path = image_net(tmp_path, free, 3, 8, 6)
    model = load_onnx(path)
    assert [t.shape for t in (*model.inputs, *model.outputs)] == [(1, 3, 8, 6), (1, 4, 48)]
    assert model.remarks == (f"{path}: the batch of 'x' is free and taken as 1; for another one give --batch N",)


def test_another_batch(tmp_path: Path) -> None:
    model = load_onnx(image_net(tmp_path, "N", 3, 8, 6), batch=5)
    assert [t.shape for t in (*model.inputs, *model.outputs)] == [(5, 3, 8, 6), (5, 4, 48)]
    assert model.remarks == ()


def test_whole_shapes_and_what_is_computed_with_them(tmp_path: Path) -> None:
    path = image_net(tmp_path, "N", 3, "height", "width")
    graph = fuse(load_onnx(path, shapes={"x": (2, 3, 7, 9)}))
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 3, 7, 9), dtype=np.float32)}
    assert_close(run(graph, host_target(), inputs), expected(onnx.load(path), inputs))


def test_one_name_is_one_size_in_all_inputs_and_outputs(tmp_path: Path) -> None:
    path = two_inputs(tmp_path, ("N", "length"), (1, "length"))
    model = load_onnx(path, shapes={"b": (1, 5)})
    assert [t.shape for t in (*model.inputs, *model.outputs)] == [(1, 5), (1, 5), (1, 5)]
    assert "the batch of 'a' is free" in model.remarks[0]
    assert load_onnx(path, shapes={"b": (1, 5)}, batch=3).inputs[0].shape == (3, 5)


def test_unnamed_axes_are_apart(tmp_path: Path) -> None:
    path = two_inputs(tmp_path, (2, "?"), (2, "?"))
    assert load_onnx(path, shapes={"a": (2, 5), "b": (2, 1)}).outputs[0].shape == (2, 5)


def test_an_input_of_unknown_rank(tmp_path: Path) -> None:
    net = Net()
    net.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    path = net.save(tmp_path / "m.onnx", net.op("Relu", "x"))
    assert refused(path) == "sizes are free: 'x' of unknown rank: give them, for example: --shape x=1,3,224,224"
    assert load_onnx(path, shapes={"x": (2, 3)}).outputs[0].shape == (2, 3)


def test_what_is_left_free_is_named_with_an_example(tmp_path: Path) -> None:
    said = refused(image_net(tmp_path, "N", 3, "height", None))
    assert said == "sizes are free: 'x' N x 3 x height x ?: give them, for example: --shape x=1,3,224,224"
    said = refused(two_inputs(tmp_path, ("N", 16, "length"), ("N", 4)), batch=2)
    assert said == "sizes are free: 'a' 2 x 16 x length: give them, for example: --shape a=2,16,128"


@pytest.mark.parametrize(
    ("shapes", "batch", "says"),
    [
        ({"y": (1,)}, None, "--shape y=1: there is no such input; there are a, b"),
        ({"a": (1, 2, 3)}, None, "--shape a=1,2,3: the input has 2 axes: N x length"),
        ({"a": (1, 0)}, None, "--shape a=1,0: give a size of at least 1 for every axis"),
        ({"b": (2, 4)}, None, "--shape b=2,4: axis 0 is 1 in the file: 1 x length"),
        (
            {"a": (2, 4), "b": (1, 5)},
            None,
            "--shape b=1,5: axis 1 is 4 ('length', which stands elsewhere too): 1 x length",
        ),
        ({"a": (2, 4)}, 3, "--batch 3: --shape says 2"),
        ({}, 0, "--batch 0: a batch is at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, shapes: Shapes, batch: int | None, says: str) -> None:
    assert refused(two_inputs(tmp_path, ("N", "length"), (1, "length")), shapes, batch) == says


def test_a_batch_of_a_file_without_a_free_one(tmp_path: Path) -> None:
    path = image_net(tmp_path, 1, 3, 8, 8)
    assert refused(path, batch=2) == "--batch 2: no input's first axis is free: 'x' 1 x 3 x 8 x 8"
    assert load_onnx(path, batch=1).inputs[0].shape == (1, 3, 8, 8)


def test_sizes_are_part_of_what_a_model_is(tmp_path: Path) -> None:
    path = image_net(tmp_path, "N", 3, 8, 8)
    digests = [load_onnx(path, batch=batch).sha256 for batch in (None, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    path = image_net(tmp_path, 1, 3, 8, 8)
    assert load_onnx(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
