"""Small networks whose behaviour under quantisation is known by construction, and samples for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

from tests.tuner.graph.networks import Net

SHAPE = (1, 3, 16, 16)
CLASSES = 6
OUTLIER = 3000.0  # times the values of the other channels


def classifier(path: Path, outlier: bool = False, opset: int = 17) -> Path:
    """A residual classifier: input "x" (1, 3, 16, 16), output (1, 6). It finds each class in some of `samples`.

    With an `outlier`, one channel of what the last convolution reads is OUTLIER times as large as the others, and has
    a weight of nearly nothing there: a single scale for all channels leaves the others no digits.
    """
    net = Net(seed=1, opset=opset)
    x = net.op("Relu", net.batch_norm(net.conv(net.input(*SHAPE), (3, 16), 3, pads=[1] * 4), 16))
    y = net.op("Relu", net.conv(x, (16, 16), 3, pads=[1] * 4))
    y = net.conv(y, (16, 16), 1)
    x = net.op("Relu", net.op("Add", x, y))
    x = net.op("Relu", net.conv(x, (16, 16), 1))
    x = _with_outlier(net, x) if outlier else x
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    features = [ReferenceEvaluator(net.model(x)).run(None, {"x": sample[np.newaxis]})[0][0] for sample in samples()]
    spread = np.std(features, 0)
    weight = net.rng.standard_normal((CLASSES, 16)) * np.where(spread > 0.1 * spread.max(), 1 / spread.max(), 0)
    bias = -(weight @ np.mean(features, 0))
    reads = [net.constant(array.astype(np.float32)) for array in (weight, bias)]
    return net.save(path, net.op("Gemm", x, *reads, transB=1))


def _with_outlier(net: Net, x: str) -> str:
    """Widen one channel, and let a convolution read it with a small weight."""
    wide = 5
    factors, weight = np.ones((1, 16, 1, 1)), net.rng.standard_normal((16, 16, 1, 1)) / 4
    factors[0, wide] = OUTLIER
    weight[:, wide] /= 100 * OUTLIER
    x = net.op("LeakyRelu", net.op("Mul", x, net.constant(factors.astype(np.float32))), alpha=0.1)
    return net.op("Relu", net.op("Conv", x, net.constant(weight.astype(np.float32)), kernel_shape=[1, 1]))


def samples(count: int = 32) -> np.ndarray:
    """Return samples for `classifier`, (count, 3, 16, 16): noise of a colour of its own."""
    rng = np.random.default_rng(5)
    colours = 2 * rng.standard_normal((count, 3, 1, 1))
    return (colours + rng.standard_normal((count, *SHAPE[1:]))).astype(np.float32)
