"""Operators that are written out in simpler ones have onnxruntime's results, those of its own domain too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.tuner.graph.networks import Net, assert_as_onnxruntime
from tuner.errors import BadInput
from tuner.graph import load_onnx

pytestmark = pytest.mark.sampled(2)
MICROSOFT = {"domain": "com.microsoft"}


def image(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RECURRENT: dict[str, dict[str, Any]] = {
    "plain": {},
    "backwards": {"direction": "reverse"},
    "both": {"direction": "bidirectional"},
    "clipped": {"clip": 0.3},
    "functions": {
        "activations": ["HardSigmoid", "Softsign", "LeakyRelu"],
        "activation_alpha": [0.3],
        "activation_beta": [0.4],
    },
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("extra", ["", "bias", "state", "lengths"])
@pytest.mark.parametrize("how", RECURRENT)
@pytest.mark.parametrize("kind", GATES)
def test_recurrent_layers(tmp_path: Path, kind: str, how: str, extra: str) -> None:
    net, attrs = Net(), dict(RECURRENT[how])
    steps, batch, size, hidden = 4, 3, 5, 6
    directions, rows = 2 if how == "both" else 1, GATES[kind] * hidden
    if "activations" in attrs:
        attrs["activations"] = attrs["activations"][: {"RNN": 1, "GRU": 2, "LSTM": 3}[kind]]
    weights = [net.weight(directions, rows, n, scale=0.4) for n in (size, hidden)]
    bias = net.weight(directions, 2 * rows) if extra == "bias" else ""
    lengths = net.constant(np.array([4, 1, 3], np.int32)) if extra == "lengths" else ""
    state = net.weight(directions, batch, hidden) if extra == "state" else ""
    reads = [net.input(steps, batch, size), *weights, bias, lengths, state]
    count = 3 if kind == "LSTM" else 2
    out = net.op(kind, *reads, outputs=count, hidden_size=hidden, **attrs)
    assert_as_onnxruntime(net, tmp_path, *(out if i == 0 else f"{out}_{i}" for i in range(count)), x=image(4, 3, 5))


@pytest.mark.parametrize("before_reset", [0, 1])
def test_the_reset_of_a_gru(tmp_path: Path, before_reset: int) -> None:
    net = Net()
    reads = [net.input(5, 2, 3), net.weight(1, 12, 3), net.weight(1, 12, 4), net.weight(1, 24)]
    out = net.op("GRU", *reads, hidden_size=4, linear_before_reset=before_reset)
    assert_as_onnxruntime(net, tmp_path, out, x=image(5, 2, 3))


def test_peepholes_and_a_forget_gate_that_is_the_rest_of_the_input_gate(tmp_path: Path) -> None:
    net = Net()
    reads = [net.input(5, 2, 3), net.weight(1, 16, 3), net.weight(1, 16, 4), net.weight(1, 32), "", "", ""]
    out = net.op("LSTM", *reads, net.weight(1, 12), hidden_size=4, input_forget=1)
    assert_as_onnxruntime(net, tmp_path, out, x=image(5, 2, 3))


def test_recurrent_weights_that_are_computed_are_refused(tmp_path: Path) -> None:
    net = Net()
    given = net.op("Relu", net.input(1, 16, 3, name="w"))
    out = net.op("LSTM", net.input(5, 2, 3), given, net.weight(1, 16, 4), hidden_size=4)
    with pytest.raises(BadInput, match=r"/lstm_1/LSTM' \(LSTM\): its weights are computed, not constants"):
        load_onnx(net.save(tmp_path / "net.onnx", out))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mask", [False, True])
def test_deformable_convolutions(tmp_path: Path, groups: int, mask: bool) -> None:
    net = Net(opset=19)
    reads = [
        net.input(2, 4, 7, 8),
        net.weight(6, 4, 3, 2),
        net.input(2, 12 * groups, 4, 9, name="offset"),
        net.weight(6),
    ]
    given = {"x": image(2, 4, 7, 8), "offset": 2 * image(2, 12 * groups, 4, 9, seed=1)}
    if mask:
        reads.append(net.input(2, 6 * groups, 4, 9, name="mask"))
        given["mask"] = image(2, 6 * groups, 4, 9, seed=2)
    out = net.op("DeformConv", *reads, offset_group=groups, strides=[2, 1], pads=[1, 0, 1, 2], kernel_shape=[3, 2])
    assert_as_onnxruntime(net, tmp_path, out, **given)


@pytest.mark.parametrize("p", [1, 2])
def test_norms_of_nothing_are_zeros(tmp_path: Path, p: int) -> None:
    net, x = Net(), image(3, 4)
    x[1] = 0
    assert_as_onnxruntime(net, tmp_path, net.op("LpNormalization", net.input(3, 4), p=p, axis=1), x=x)


def test_blocks_are_added_to_an_image(tmp_path: Path) -> None:
    net = Net(opset=18)
    image_shape, block = (net.constant(np.array(v)) for v in ([6, 7], [2, 3]))
    out = net.op("Col2Im", net.input(2, 12, 9), image_shape, block, strides=[2, 2], dilations=[1, 1], pads=[0, 0, 0, 0])
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 12, 9))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_fourier_transforms(tmp_path: Path, parts: int, onesided: int) -> None:
    if parts == 2 and onesided:
        pytest.skip("one side of a spectrum is enough for real numbers alone")
    net = Net()
    length = net.constant(np.array(10))
    out = net.op("DFT", net.input(2, 8, 3, parts), length, axis=1, onesided=onesided)
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 8, 3, parts))


def test_short_time_fourier_transforms(tmp_path: Path) -> None:
    net = Net()
    window = net.constant(np.hanning(16).astype(np.float32))
    out = net.op("STFT", net.input(2, 80, 1), net.constant(np.array(4)), window, net.constant(np.array(16)))
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 80, 1))


@pytest.mark.parametrize("size", [1e-3, 1.0, 20.0])
@pytest.mark.parametrize("kind", ["Softplus", "Mish"])
def test_functions_keep_the_digits_of_small_values(tmp_path: Path, kind: str, size: float) -> None:
    net = Net(opset=18)
    out = net.op(kind, net.input(7, 9))
    assert_as_onnxruntime(net, tmp_path, out, tolerance=1e-12, x=size * image(7, 9))


def test_a_sequence_is_resolved(tmp_path: Path) -> None:
    net = Net()
    parts = net.op("SplitToSequence", net.input(2, 6), net.constant(np.array(2)), axis=1)
    less = net.op("SequenceErase", parts, net.constant(np.array(-3)))
    more = net.op(
        "SequenceInsert", less, net.op("SequenceAt", parts, net.constant(np.array(0))), net.constant(np.array(-1))
    )
    assert_as_onnxruntime(net, tmp_path, net.op("ConcatFromSequence", more, axis=0, new_axis=1), x=image(2, 6))


@pytest.mark.parametrize("others", [1, 2])
def test_what_has_no_entries_is_joined_to_nothing(tmp_path: Path, others: int) -> None:
    net = Net()
    x, nothing = net.input(2, 3), net.constant(np.zeros((0, 3), np.float32))
    out = net.op("Relu", net.op("Concat", *[x] * others, nothing, axis=0))
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 3))


def test_batch_normalisation_in_training(tmp_path: Path) -> None:
    net = Net()
    reads = [net.input(3, 4, 5), net.weight(4), net.weight(4), net.weight(4), net.constant(np.ones(4, np.float32))]
    out = net.op("BatchNormalization", *reads, outputs=3, training_mode=1, momentum=0.7)
    assert_as_onnxruntime(net, tmp_path, out, f"{out}_1", f"{out}_2", x=image(3, 4, 5))


ACTIVATIONS = [("Relu", ()), ("Clip", (0.0, 6.0)), ("LeakyRelu", (0.1,)), ("HardSigmoid", (0.2, 0.5)), ("Tanh", ())]


@pytest.mark.parametrize(("activation", "parameters"), ACTIVATIONS)
def test_fused_convolutions(tmp_path: Path, activation: str, parameters: tuple[float, ...]) -> None:
    net = Net()
    reads = [net.input(1, 4, 6, 6), net.weight(8, 4, 3, 3), net.weight(8)]
    more = {"activation_params": list(parameters)} if parameters else {}
    out = net.op(
        "FusedConv", *reads, activation=activation, pads=[1, 1, 1, 1], kernel_shape=[3, 3], **MICROSOFT, **more
    )
    assert_as_onnxruntime(net, tmp_path, out, x=image(1, 4, 6, 6))


@pytest.mark.parametrize("kind", ["Gelu", "QuickGelu", "FastGelu", "BiasGelu"])
def test_gelus(tmp_path: Path, kind: str) -> None:
    net = Net()
    reads = [net.input(2, 3, 8), *([net.weight(8)] if kind == "BiasGelu" else [])]
    assert_as_onnxruntime(net, tmp_path, net.op(kind, *reads, **MICROSOFT), x=image(2, 3, 8))


@pytest.mark.parametrize("kind", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_of_two_is_normalised(tmp_path: Path, kind: str) -> None:
    net = Net()
    reads = [net.input(2, 3, 8), net.input(2, 3, 8, name="skip"), net.weight(8)]
    reads += [net.weight(8)] if kind == "SkipLayerNormalization" else []
    out = net.op(kind, *reads, net.weight(8), epsilon=1e-5, **MICROSOFT)
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 3, 8), skip=image(2, 3, 8, seed=1))


@pytest.mark.parametrize("turned", [("A",), ("B",), ("A", "B"), ()])
def test_fused_products(tmp_path: Path, turned: tuple[str, ...]) -> None:
    net = Net()
    shape = (2, 5, 4) if "A" in turned else (2, 4, 5)
    weight = net.weight(2, 6, 5) if "B" in turned else net.weight(2, 5, 6)
    attrs = {f"trans{letter}": 1 for letter in turned}
    out = net.op("FusedMatMul", net.input(*shape), weight, alpha=0.25, **MICROSOFT, **attrs)
    assert_as_onnxruntime(net, tmp_path, out, x=image(*shape))


def quantised(net: Net, x: str, kind: str) -> list[str]:
    """An operand with its scale and zero point."""
    return [x, net.scalar(0.02), net.constant(np.array(3, kind))]


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("by_channel", [False, True])
def test_quantised_convolutions(tmp_path: Path, kind: str, by_channel: bool) -> None:
    net = Net()
    x = net.input(1, 16, 6, 6, dtype=TensorProto.UINT8 if kind == "uint8" else TensorProto.INT8)
    weight = net.constant(integers(8, 16, 3, 3, dtype=np.int8))
    scales = np.linspace(0.001, 0.01, 8).astype(np.float32) if by_channel else np.float32(0.004)
    zeros = np.zeros(8 if by_channel else (), np.int8)
    reads = [*quantised(net, x, kind), weight, net.constant(scales), net.constant(zeros), net.scalar(0.3)]
    bias = net.constant(np.arange(8, dtype=np.int32) * 100)
    out = net.op("QLinearConv", *reads, net.constant(np.array(1, kind)), bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert_as_onnxruntime(net, tmp_path, out, x=integers(1, 16, 6, 6, dtype=np.dtype(kind).type))


def test_quantised_products(tmp_path: Path) -> None:
    net = Net()
    reads = [*quantised(net, net.input(3, 40, dtype=TensorProto.UINT8), "uint8")]
    reads += [net.constant(integers(40, 9, dtype=np.int8)), net.scalar(0.01), net.constant(np.array(0, np.int8))]
    out = net.op("QLinearMatMul", *reads, net.scalar(0.2), net.constant(np.array(128, np.uint8)))
    assert_as_onnxruntime(net, tmp_path, out, x=integers(3, 40))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", [7, 600, 5000])
def test_products_of_integers_are_exact(tmp_path: Path, inner: int) -> None:
    net = Net()
    weight = net.constant(np.full((inner, 3), -127, np.int8))
    out = net.op(
        "MatMulInteger", net.input(2, inner, dtype=TensorProto.UINT8), weight, net.constant(np.array(5, np.uint8))
    )
    assert_as_onnxruntime(net, tmp_path, out, x=integers(2, inner))


@pytest.mark.parametrize("channels", [3, 200, 1000])
def test_convolutions_of_integers_are_exact(tmp_path: Path, channels: int) -> None:
    net = Net()
    weight = net.constant(np.full((2, channels, 3, 3), 127, np.int8))
    out = net.op("ConvInteger", net.input(1, channels, 5, 5, dtype=TensorProto.UINT8), weight, kernel_shape=[3, 3])
    assert_as_onnxruntime(net, tmp_path, out, x=integers(1, channels, 5, 5))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("kind", ["uint8", "int8", "int16"])
def test_quantising_and_back(tmp_path: Path, kind: str, axis: int | None) -> None:
    net = Net(opset=21)
    size = {None: (), 0: (3,), 1: (5,)}[axis]
    scale = net.constant((np.random.default_rng(1).random(size) * 0.05 + 0.01).astype(np.float32))
    zero = net.constant(np.full(size, 2, kind))
    attrs = {} if axis is None else {"axis": axis}
    narrow = net.op("QuantizeLinear", net.input(3, 5, 7), scale, zero, **attrs)
    wide = net.op("DequantizeLinear", narrow, scale, zero, **attrs)
    assert_as_onnxruntime(net, tmp_path, narrow, wide, x=image(3, 5, 7))


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_quantised_sums_and_products_of_tensors(tmp_path: Path, kind: str) -> None:
    net = Net()
    reads = [r for n in ("x", "y") for r in quantised(net, net.input(3, 5, name=n, dtype=TensorProto.UINT8), "uint8")]
    out = net.op(kind, *reads, net.scalar(0.05), net.constant(np.array(9, np.uint8)), **MICROSOFT)
    assert_as_onnxruntime(net, tmp_path, out, tolerance=1, x=integers(3, 5), y=integers(3, 5, seed=1))


OF_ONE_TENSOR = {
    "QLinearSigmoid": {},
    "QLinearLeakyRelu": {},
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QLinearSoftmax": {"axis": 2, "opset": 13},
    "QLinearSoftmax of old": {"axis": 2, "opset": 12},
}


@pytest.mark.parametrize("name", OF_ONE_TENSOR)
def test_quantised_operators_of_one_tensor(tmp_path: Path, name: str) -> None:
    net, attrs, kind = Net(), OF_ONE_TENSOR[name], name.split()[0]
    reads = quantised(net, net.input(1, 3, 5, 5, dtype=TensorProto.UINT8), "uint8")
    out = net.op(kind, *reads, net.scalar(0.01), net.constant(np.array(9, np.uint8)), **MICROSOFT, **attrs)
    assert_as_onnxruntime(net, tmp_path, out, tolerance=1, x=integers(1, 3, 5, 5))


def test_quantised_tensors_are_joined(tmp_path: Path) -> None:
    net = Net()
    reads = [r for n in ("x", "y") for r in quantised(net, net.input(3, 5, name=n, dtype=TensorProto.UINT8), "uint8")]
    end = [net.scalar(0.03), net.constant(np.array(9, np.uint8))]
    assert_as_onnxruntime(
        net, tmp_path, net.op("QLinearConcat", *end, *reads, axis=1, **MICROSOFT), tolerance=1,
        x=integers(3, 5), y=integers(3, 5, seed=1),
    )  # fmt: skip


@pytest.mark.parametrize("quantised_result", [False, True])
def test_quantised_dense_layers(tmp_path: Path, quantised_result: bool) -> None:
    net = Net()
    reads = quantised(net, net.input(3, 40, dtype=TensorProto.UINT8), "uint8")
    scales = net.constant(np.linspace(0.01, 0.02, 9).astype(np.float32))
    reads += [net.constant(integers(9, 40, dtype=np.int8)), scales, net.constant(np.zeros(9, np.int8))]
    reads += [net.constant(np.arange(9, dtype=np.int32) * 50)]
    reads += [net.scalar(0.5), net.constant(np.array(7, np.uint8))] if quantised_result else []
    assert_as_onnxruntime(net, tmp_path, net.op("QGemm", *reads, transB=1, **MICROSOFT), x=integers(3, 40))


def test_an_output_without_a_shape_is_read_by_what_is_written_out(tmp_path: Path) -> None:
    """Its shape follows from the nodes: it is not that of a single number."""
    net = Net()
    first = net.op("Relu", net.input(2, 6))
    second = net.op("LpNormalization", first, axis=1, p=2)
    halves = net.op("SplitToSequence", second, net.constant(np.array(3)), axis=1)
    last = net.op("SequenceAt", halves, net.constant(np.array(1)))
    path = net.save(tmp_path / "net.onnx", first, second, last)
    assert [o.shape for o in load_onnx(path).outputs] == [(2, 6), (2, 6), (2, 3)]
