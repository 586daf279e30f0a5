"""Builds SqueezeNet 1.0 (Iandola et al., 2016, table 1) as torchvision does: 1.25 M parameters, 0.82 G multiply-adds.
It has no batch normalisation: every convolution has a bias.
"""

from __future__ import annotations

from tuner.zoo.builder import GraphBuilder

# Squeeze and expand channels of each fire module; None is a max-pool.
MODULES = (None, (16, 64), (16, 64), (32, 128), None, (32, 128), (48, 192), (48, 192), (64, 256), None, (64, 256))


def build(b: GraphBuilder, batch: int) -> str:
    """Build the network and return the name of its output (batch, 1000)."""
    x = b.input("data", (batch, 3, 224, 224))
    x = b.relu(b.conv(x, "features.0", 96, 7, 2, bias=True))
    for i, module in enumerate(MODULES, 2):
        x = b.max_pool(x, 3, 2, ceil=True) if module is None else _fire(b, x, f"features.{i}", *module)
    x = b.relu(b.conv(b.dropout(x), "classifier.1", 1000, 1, bias=True))
    return b.flatten(b.global_average_pool(x))


def _fire(b: GraphBuilder, x: str, name: str, squeeze: int, expand: int) -> str:
    x = b.relu(b.conv(x, f"{name}.squeeze", squeeze, 1, bias=True))
    one = b.relu(b.conv(x, f"{name}.expand1x1", expand, 1, bias=True))
    three = b.relu(b.conv(x, f"{name}.expand3x3", expand, 3, padding=1, bias=True))
    return b.concat([one, three])
