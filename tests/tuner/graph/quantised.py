"""Quantise networks for tests, as onnxruntime's quantizer does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tvm
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from tvm.target import Target

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, compiled
from tuner.graph import fuse, load_onnx

RESIDUAL_SHAPE = (1, 3, 32, 32)
DETECTOR_SHAPE = (1, 3, 24, 24)
DECODER_SHAPE = (1, 3, 12, 10)
ATTENTION_SHAPE = (3, 37, 24)


def image(shape: Sequence[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class _Images(CalibrationDataReader):
    def __init__(self, shape: Sequence[int]) -> None:
        self._images = iter([{"x": image(shape, seed)} for seed in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._images, None)


def quantise(
    source: Path,
    path: Path,
    shape: Sequence[int],
    *,
    channels: bool = True,
    signed: bool = False,
    operators: bool = False,
) -> Path:
    """Quantise a model whose input "x" has this shape, in the QDQ form, or with quantised operators."""
    quantize_static(
        source,
        path,
        _Images(shape),
        quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
        per_channel=channels,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return path


def step_of(path: Path) -> float:
    """Return the size of a step of a quantised model's result."""
    model = onnx.load(path)
    last = next(node for node in model.graph.node if node.output[0] == model.graph.output[0].name)
    return float(next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == last.input[1]))


def assert_within_a_step(
    path: Path,
    shape: Sequence[int],
    *,
    optimised: bool,
    target: Target | None = None,
    device: tvm.runtime.Device | None = None,
) -> None:
    """Integers give what onnxruntime gives, with its graph optimisation or without, but for a step here and there. They
    are multiplied on the CPU unless a target and its device are given."""
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    graph = fuse(load_onnx(path), integers=True, pairs=target is None)
    network, steps = compiled(graph, target or host_target(), device=device), []
    for seed in range(10, 14):
        data = image(shape, seed)
        (wanted,) = session.run(None, {"x": data})
        (result,) = network({"x": data}).values()
        steps.append(np.abs(result - wanted) / step_of(path))
    assert np.max(steps) < 1.5
    assert np.mean(np.array(steps) > 0.5) < 0.1


def residual(path: Path) -> Path:
    """A residual network with a pool, a sum, a mean and a dense layer."""
    net = Net(seed=1)
    x = net.op("Relu", net.conv(net.input(*RESIDUAL_SHAPE), (3, 32), 5, strides=[2, 2], pads=[2] * 4))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = net.op("Relu", net.conv(x, (32, 48), 3, pads=[1] * 4))
    y = net.conv(y, (48, 32), 1)
    x = net.op("Relu", net.op("Add", x, y))
    x = net.conv(x, (32, 40), 3, strides=[2, 2], pads=[1] * 4)
    x = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", x)))
    return net.save(path, net.op("Gemm", x, net.weight(10, 40, scale=0.2), net.weight(10), transB=1))


def _silu(net: Net, x: str, channels: tuple[int, int], kernel: int) -> str:
    x = net.conv(x, channels, kernel, pads=[kernel // 2] * 4)
    return net.op("Mul", x, net.op("Sigmoid", x))


def detecting(path: Path) -> Path:
    """A block as YOLOv8 has it: what was split is summed, joined, enlarged and joined again."""
    net = Net(seed=3)
    x = _silu(net, net.input(*DETECTOR_SHAPE), (3, 32), 3)
    first = net.op("Split", x, net.constant(np.array([16, 16])), outputs=2, axis=1)
    second = f"{first}_1"
    y = net.op("Add", second, _silu(net, second, (16, 16), 3))
    x = net.op("Concat", first, second, y, axis=1)
    small = _silu(net, net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), (48, 32), 1)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    large = net.op(
        "Resize", small, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
    x = _silu(net, net.op("Concat", large, x, axis=1), (80, 24), 1)
    return net.save(path, net.conv(x, (24, 20), 1))


def attending(path: Path) -> Path:
    """Write a network whose input "x" is of ATTENTION_SHAPE: it is multiplied by itself, and by the softmax of that."""
    net = Net(seed=6)
    x = net.op("Relu", net.input(*ATTENTION_SHAPE))
    scores = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]))
    return net.save(path, net.op("MatMul", net.op("Softmax", scores, axis=-1), net.op("Neg", x)))


def branching(path: Path) -> Path:
    """Write a network whose input "x" is (1, 3, 16, 16). Two convolutions follow each other, two others read the second
    one's result, and the last layer is dense."""
    net = Net(seed=2)
    x = net.op("Relu", net.conv(net.input(1, 3, 16, 16), (3, 16), 3, pads=[1] * 4))
    x = net.op("Relu", net.conv(x, (16, 16), 3, pads=[1] * 4))
    y, z = (net.op("Relu", net.conv(x, (16, 16), size, pads=[size // 2] * 4)) for size in (1, 5))
    x = net.op("Flatten", net.op("GlobalAveragePool", net.op("Add", y, z)))
    return net.save(path, net.op("Gemm", x, net.weight(10, 16, scale=0.2), net.weight(10), transB=1))


def decoding(path: Path) -> Path:
    """Write a network whose input "x" is of DECODER_SHAPE: convolutions in groups of eight, four and two channels, and
    transposed convolutions by which its image grows, one of which is added to a smaller layer's."""
    net = Net(seed=5)
    x = net.op("Relu", net.conv(net.input(*DECODER_SHAPE), (3, 32), 3, pads=[1] * 4))
    y = net.op("Relu", net.conv(x, (8, 32), 3, pads=[1] * 4, group=4, strides=[2, 2]))
    y = net.op("Relu", net.conv(y, (4, 32), 3, pads=[1] * 4, group=8))
    y = net.op("Relu", net.conv(y, (2, 48), 1, group=16))
    y = net.op("ConvTranspose", y, net.weight(48, 32, 2, 2, scale=0.15), net.weight(32), strides=[2, 2])
    x = net.op("Relu", net.op("Add", x, y))
    window = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    x = net.op("Relu", net.op("ConvTranspose", x, net.weight(32, 20, 3, 3, scale=0.1), net.weight(20), **window))
    return net.save(path, net.conv(x, (20, 8), 1))
