"""Builds ResNet-50 v1 (He et al., 2015, table 1) like GluonCV's resnet50_v1: the stride of a stage is in its first 1x1
convolution (torchvision has it in the 3x3). It has 25.56 M parameters and 3.86 G multiply-adds.
"""

from __future__ import annotations

from tuner.zoo.builder import GraphBuilder

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # inner channels, blocks, stride of the first block
EXPANSION = 4


def build(b: GraphBuilder, batch: int) -> str:
    """Build the network and return the name of its output (batch, 1000)."""
    x = features(b, b.input("data", (batch, 3, 224, 224)))[-1][-1]
    return b.dense(b.flatten(b.global_average_pool(x)), "dense0", 1000)


def features(b: GraphBuilder, x: str) -> list[list[str]]:
    """Add all blocks and return their results, stage by stage."""
    x = b.relu(b.batch_norm(b.conv(x, "conv0", 64, 7, 2, 3), "batchnorm0"))
    x = b.max_pool(x, 3, 2, padding=1)
    found: list[list[str]] = []
    for i, (channels, blocks, stride) in enumerate(STAGES, 1):
        found.append([])
        for j in range(blocks):
            x = _bottleneck(b, x, f"stage{i}.{j}", channels=channels, stride=stride if j == 0 else 1)
            found[-1].append(x)
    return found


def _bottleneck(b: GraphBuilder, x: str, name: str, *, channels: int, stride: int) -> str:
    out_channels = channels * EXPANSION
    y = b.relu(b.batch_norm(b.conv(x, f"{name}.conv0", channels, 1, stride), f"{name}.batchnorm0"))
    y = b.relu(b.batch_norm(b.conv(y, f"{name}.conv1", channels, 3, 1, 1), f"{name}.batchnorm1"))
    y = b.batch_norm(b.conv(y, f"{name}.conv2", out_channels, 1), f"{name}.batchnorm2", gain=0.4)
    if b.channels[x] != out_channels:
        x = b.conv(x, f"{name}.downsample.conv", out_channels, 1, stride, gain=1.0)
        x = b.batch_norm(x, f"{name}.downsample.batchnorm")
    return b.relu(b.add(y, x))
