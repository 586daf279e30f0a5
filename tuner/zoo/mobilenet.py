"""Builds MobileNet v1 with multiplier 1.0 (Howard et al., 2017, table 1) like GluonCV's mobilenet1.0: 4.23 M
parameters, 0.57 G multiply-adds.
"""

from __future__ import annotations

from tuner.zoo.builder import GraphBuilder

# Pointwise output channels and depthwise stride of each separable block.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def build(b: GraphBuilder, batch: int) -> str:
    """Build the network and return the name of its output (batch, 1000)."""
    x = features(b, b.input("data", (batch, 3, 224, 224)))[-1]
    return b.dense(b.flatten(b.global_average_pool(x)), "output", 1000)


def features(b: GraphBuilder, x: str) -> list[str]:
    """Add all blocks and return their results."""
    x = b.conv_bn_relu(x, "features0", 32, kernel=3, stride=2, padding=1)
    found = []
    for i, (channels, stride) in enumerate(BLOCKS, 1):
        x = b.conv_bn_relu(
            x, f"features{i}.depthwise", b.channels[x], kernel=3, stride=stride, padding=1, groups=b.channels[x]
        )
        x = b.conv_bn_relu(x, f"features{i}.pointwise", channels, kernel=1)
        found.append(x)
    return found
