"""Files as people have them become what the quantizer takes; what it cannot take is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.tuner.graph.networks import Net
from tests.tuner.quantization.conftest import Case
from tests.tuner.quantization.networks import classifier, samples
from tuner.errors import BadInput
from tuner.module import OnnxReference
from tuner.quantization import prepare


def computed(prepared: onnx.ModelProto, folder: Path, **inputs: np.ndarray) -> np.ndarray:
    onnx.save(prepared, folder / "prepared.onnx")
    (value,) = OnnxReference(folder / "prepared.onnx")(inputs).values()
    return value


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_operator_sets_and_batch_normalisations(tmp_path: Path, opset: int) -> None:
    file = classifier(tmp_path / "net.onnx", opset=opset)
    prepared = prepare(file, {}, scratch=tmp_path)
    kinds = [node.op_type for node in prepared.model.graph.node]
    assert "BatchNormalization" not in kinds
    assert len({node.name for node in prepared.model.graph.node}) == len(kinds)
    image = samples()[:1]
    (wanted,) = OnnxReference(file)({"x": image}).values()
    np.testing.assert_allclose(computed(prepared.model, tmp_path, x=image), wanted, rtol=1e-3, atol=1e-3)


def test_free_axes_get_their_sizes(tmp_path: Path) -> None:
    net = Net()
    x = net.conv(net.input("N", 3, "H", "W"), (3, 4), 3)
    file = net.save(tmp_path / "net.onnx", net.op("GlobalAveragePool", x))
    prepared = prepare(file, {"x": (1, 3, 9, 8)}, scratch=tmp_path)
    assert [info.shape for info in prepared.inputs] == [(1, 3, 9, 8)]
    with pytest.raises(BadInput, match="sizes are free"):
        prepare(file, {}, scratch=tmp_path)


def test_a_free_batch_is_one_and_a_line_says_so(tmp_path: Path) -> None:
    net = Net()
    file = net.save(tmp_path / "net.onnx", net.conv(net.input("N", 3, 8, 8), (3, 4), 3))
    prepared = prepare(file, {}, scratch=tmp_path)
    assert prepared.inputs[0].shape == (1, 3, 8, 8)
    assert "taken as 1" in prepared.remarks[0]
    assert prepare(file, {}, 3, scratch=tmp_path).inputs[0].shape == (3, 3, 8, 8)


def test_halves_are_widened(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Cast", net.input(1, 3, 8, 8), to=TensorProto.FLOAT16)
    weight = net.constant(np.full((4, 3, 3, 3), 0.25, np.float16))
    file = net.save(tmp_path / "net.onnx", net.op("Cast", net.op("Conv", x, weight), to=TensorProto.FLOAT))
    prepared = prepare(file, {}, scratch=tmp_path)
    assert {tensor.data_type for tensor in prepared.model.graph.initializer} == {TensorProto.FLOAT}


def test_a_quantised_file_is_refused(plain: Case, tmp_path: Path) -> None:
    onnx.save(plain.quantized().choice.model, tmp_path / "q.onnx")
    with pytest.raises(BadInput, match="is quantised already; give the float network"):
        prepare(tmp_path / "q.onnx", {}, scratch=tmp_path)


def test_a_network_without_weights_has_nothing_to_quantise(tmp_path: Path) -> None:
    from tuner.quantization import Wanted, open_samples, quantize

    net = Net()
    file = net.save(tmp_path / "net.onnx", net.op("Relu", net.input(1, 3, 8, 8)))
    prepared = prepare(file, {}, scratch=tmp_path)
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3, 8, 8), np.float32))
    with pytest.raises(BadInput, match="has no convolution or dense layer that could be"):
        quantize(prepared, open_samples(tmp_path / "x.npz", prepared.inputs), Wanted(), scratch=tmp_path)
