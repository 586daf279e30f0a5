"""The fast reference operators compute what onnxruntime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tuner.graph.networks import Net
from tuner.errors import BadInput
from tuner.module import OnnxReference

onnxruntime = pytest.importorskip("onnxruntime")


def compare(net: Net, out: str, folder: Path, *shape: int) -> None:
    path = net.save(folder / "m.onnx", out)
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    (result,) = OnnxReference(path)(inputs).values()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        {"dilations": [2, 3]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID"},
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_convolution(tmp_path: Path, options: dict[str, Any], group: int) -> None:
    net = Net()
    out = net.conv(net.input(2, 4, 9, 11), (4 // group, 6), kernel=(3, 2), group=group, **options)
    compare(net, out, tmp_path, 2, 4, 9, 11)


def test_convolution_of_rows(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Conv", net.input(1, 4, 9), net.weight(3, 4, 3))
    compare(net, out, tmp_path, 1, 4, 9)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 0]},
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [2, 2, 2, 2]},
        {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 2], "strides": [3, 2], "dilations": [2, 1]},
    ],
)
@pytest.mark.parametrize("kind", [("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})])
def test_pooling(tmp_path: Path, kind: tuple[str, dict], options: dict[str, Any], ceil_mode: int) -> None:
    name, extra = kind
    net = Net(opset=19)
    out = net.op(name, net.input(1, 3, 10, 13), ceil_mode=ceil_mode, **options, **extra)
    compare(net, out, tmp_path, 1, 3, 10, 13)


def test_pooling_of_rows(tmp_path: Path) -> None:
    for name in ("MaxPool", "AveragePool"):
        net = Net()
        compare(net, net.op(name, net.input(1, 3, 10), kernel_shape=[3]), tmp_path, 1, 3, 10)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="verify against"):
        OnnxReference(tmp_path / "none.onnx")
