"""Builds ResNet-18 (He et al., 2015, table 1) as torchvision does: 11.69 M parameters, 1.81 G multiply-adds."""

from __future__ import annotations

from tuner.zoo.builder import GraphBuilder

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels, stride of the first block
BLOCKS = 2


def build(b: GraphBuilder, batch: int) -> str:
    """Build the network and return the name of its output (batch, 1000)."""
    x = b.input("data", (batch, 3, 224, 224))
    x = b.relu(b.batch_norm(b.conv(x, "conv1", 64, 7, 2, 3), "bn1"))
    x = b.max_pool(x, 3, 2, padding=1)
    for i, (channels, stride) in enumerate(STAGES, 1):
        for j in range(BLOCKS):
            x = _basic_block(b, x, f"layer{i}.{j}", channels=channels, stride=stride if j == 0 else 1)
    return b.dense(b.flatten(b.global_average_pool(x)), "fc", 1000)


def _basic_block(b: GraphBuilder, x: str, name: str, *, channels: int, stride: int) -> str:
    y = b.relu(b.batch_norm(b.conv(x, f"{name}.conv1", channels, 3, stride, 1), f"{name}.bn1"))
    y = b.batch_norm(b.conv(y, f"{name}.conv2", channels, 3, 1, 1), f"{name}.bn2", gain=0.4)
    if stride != 1 or b.channels[x] != channels:
        x = b.conv(x, f"{name}.downsample.0", channels, 1, stride, gain=1.0)
        x = b.batch_norm(x, f"{name}.downsample.1")
    return b.relu(b.add(y, x))
