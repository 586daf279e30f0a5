"""onnx's evaluator with our operators computes what onnxruntime computes, and which of the two is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.tuner.graph.networks import Net
from tuner.errors import BadInput
from tuner.module import OnnxReference
from tuner.module.evaluator import evaluator_of

onnxruntime = pytest.importorskip("onnxruntime")


def compare(net: Net, out: str, folder: Path, *shape: int) -> None:
    path = net.save(folder / "m.onnx", out)
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    (result,) = evaluator_of(onnx.load(path)).run(None, inputs)
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


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15])
def test_batch_normalization_is_not_of_the_batch(tmp_path: Path, opset: int) -> None:
    net = Net(opset=opset)
    compare(net, net.batch_norm(net.input(2, 4, 5, 3), 4), tmp_path, 2, 4, 5, 3)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_quantised_values_in_every_operator_set(tmp_path: Path, opset: int) -> None:
    net = Net(opset=opset)
    scale, zero = net.constant(np.float32(0.05)), net.constant(np.uint8(100))
    quantised = net.op("QuantizeLinear", net.input(2, 3, 4), scale, zero)
    compare(net, net.op("DequantizeLinear", quantised, scale, zero), tmp_path, 2, 3, 4)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [{}, {"axis": 0}, {"axis": 2}, {"axis": -1}])
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_and_its_like(tmp_path: Path, kind: str, axis: dict[str, int], opset: int) -> None:
    net = Net(opset=opset)
    compare(net, net.op(kind, net.input(2, 3, 4, 5), **axis), tmp_path, 2, 3, 4, 5)


@pytest.mark.parametrize("size", [1, 3, 5])  # onnxruntime has no others
def test_normalization_of_neighbouring_channels(tmp_path: Path, size: int) -> None:
    net = Net()
    out = net.op("LRN", net.input(2, 7, 3, 4), size=size, alpha=0.5, beta=0.6, bias=2.0)
    compare(net, out, tmp_path, 2, 7, 3, 4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_global_maximum(tmp_path: Path, rank: int) -> None:
    net, shape = Net(), (2, 3, *(4, 5, 6)[:rank])
    compare(net, net.op("GlobalMaxPool", net.input(*shape)), tmp_path, *shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2]},
        {"dilations": [2, 1], "strides": [1, 2]},
        {"output_shape": [10, 13], "strides": [2, 2]},
        {"output_shape": [12, 9], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    ],
)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_transposed_convolution(tmp_path: Path, options: dict[str, Any], group: int) -> None:
    net = Net()
    reads = [
        net.input(2, 4, 5, 6),
        net.weight(4, 6 // group if group < 4 else 2, 3, 2),
        net.weight(6 if group < 4 else 8),
    ]
    compare(net, net.op("ConvTranspose", *reads, group=group, **options), tmp_path, 2, 4, 5, 6)


@pytest.mark.parametrize("rank", [1, 3])
def test_transposed_convolution_of_other_ranks(tmp_path: Path, rank: int) -> None:
    net, sizes = Net(), (4, 5, 6)[:rank]
    out = net.op("ConvTranspose", net.input(1, 4, *sizes), net.weight(4, 3, *[2] * rank), strides=[2] * rank)
    compare(net, out, tmp_path, 1, 4, *sizes)


def test_onnxruntime_is_asked_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", net.op("Relu", net.input(2, 3)))
    inputs = {"x": np.array([[-1, 0, 1], [2, -3, np.nan]], np.float32)}
    found = OnnxReference(path)
    assert found.referee == "onnxruntime"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    without = OnnxReference(path)
    assert without.referee == "onnx"
    for name, value in found(inputs).items():
        np.testing.assert_array_equal(without(inputs)[name], value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="verify against"):
        OnnxReference(tmp_path / "none.onnx")


def test_a_model_that_nobody_evaluates_is_refused_in_one_line(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", net.conv(net.input(1, 4, 9, 9), (4, 6), pads=[-1, 0, 0, 0]))
    with pytest.raises(BadInput, match=r"m\.onnx: onnx cannot run it to verify against") as caught:
        OnnxReference(path)({"x": np.ones((1, 4, 9, 9), np.float32)})
    assert "\n" not in str(caught.value)
