"""A network small enough to be tuned in seconds, with every kind of step: convolutions with batch normalisation, a
depthwise one, a residual addition, pooling, a dense layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tuner.zoo.builder import GraphBuilder


def write_tiny_network(path: Path, seed: int = 0) -> Path:
    """Input "data" (1, 3, 16, 16), output (1, 10)."""
    b = GraphBuilder("tiny", np.random.default_rng(seed))
    x = b.conv_bn_relu(b.input("data", (1, 3, 16, 16)), "stem", 16, kernel=3, padding=1)
    y = b.conv_bn_relu(x, "depthwise", 16, kernel=3, padding=1, groups=16)
    y = b.batch_norm(b.conv(y, "pointwise", 16, 1), "pointwise.bn")
    x = b.max_pool(b.relu(b.add(y, x)), 2, 2)
    output = b.dense(b.flatten(b.global_average_pool(x)), "fc", 10)
    path.write_bytes(b.model(output).SerializeToString())
    return path
