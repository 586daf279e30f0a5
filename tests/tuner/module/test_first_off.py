"""The first node that a module gets wrong is found, on whatever branch it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.tuner.graph.networks import Net
from tuner.devices import open_device
from tuner.graph import Parts, load_onnx
from tuner.module import Module, build, first_off, load


def network(folder: Path) -> tuple[Path, str]:
    """Two branches of convolutions that are added; the weights of those at the left are w0 and w2."""
    net = Net()
    x = net.input(1, 3, 12, 12)
    left = net.op("Relu", net.conv(net.op("Relu", net.conv(x, (3, 8))), (8, 8)))
    right = net.op("Sigmoid", net.conv(net.op("Tanh", net.conv(x, (3, 8))), (8, 8)))
    out = net.conv(net.op("Add", left, right), (8, 5))
    return net.save(folder / "net.onnx", out), out


def builder_of_wrong(weights: str) -> Callable[[Path, Path], Module]:
    """It builds models of which one convolution's weights are others, as an importer that reads them wrongly would."""

    def build_wrong(file: Path, folder: Path) -> Module:
        model = onnx.load(str(file))
        for tensor in model.graph.initializer:
            if tensor.name == weights:
                tensor.CopyFrom(numpy_helper.from_array(-1.5 * numpy_helper.to_array(tensor), weights))
        file.with_name("wrong.onnx").write_bytes(model.SerializeToString())
        build(load_onnx(file.with_name("wrong.onnx")), open_device("cpu", 1), folder)
        return load(folder)

    return build_wrong


@pytest.mark.sampled(2)
@pytest.mark.parametrize("node", [0, 2, 4, 6])
def test_the_node_is_named(tmp_path: Path, node: int) -> None:
    file, out = network(tmp_path)
    convolution = onnx.load(str(file)).graph.node[node]
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 3, 12, 12), dtype=np.float32)}
    build_wrong = builder_of_wrong(convolution.input[1])
    found = first_off(Parts(file), out, inputs, allowed=1e-4, build=build_wrong)
    assert found == f"node {convolution.name!r} (Conv)"


def test_none_is_named_where_all_are_right(tmp_path: Path) -> None:
    file, out = network(tmp_path)
    inputs = {"x": np.zeros((1, 3, 12, 12), np.float32)}
    assert first_off(Parts(file), out, inputs, allowed=1e-4, build=builder_of_wrong("")) is None
