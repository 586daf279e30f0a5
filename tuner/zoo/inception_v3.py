"""Builds Inception v3 (Szegedy et al., 2015, section 6) as torchvision does, without the auxiliary head: 299x299 input,
23.83 M parameters, 5.71 G multiply-adds.
"""

from __future__ import annotations

from tuner.zoo.builder import GraphBuilder

EPSILON = 1e-3


def build(b: GraphBuilder, batch: int) -> str:
    """Build the network and return the name of its output (batch, 1000)."""
    x = b.input("data", (batch, 3, 299, 299))
    x = _conv(b, x, "Conv2d_1a_3x3", channels=32, kernel=3, stride=2)
    x = _conv(b, x, "Conv2d_2a_3x3", channels=32, kernel=3)
    x = _conv(b, x, "Conv2d_2b_3x3", channels=64, kernel=3, padding=1)
    x = b.max_pool(x, 3, 2)
    x = _conv(b, x, "Conv2d_3b_1x1", channels=80, kernel=1)
    x = _conv(b, x, "Conv2d_4a_3x3", channels=192, kernel=3)
    x = b.max_pool(x, 3, 2)
    for name, pool_channels in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = _block_a(b, x, name, pool_channels)
    x = _block_b(b, x, "Mixed_6a")
    for name, inner in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _block_c(b, x, name, inner)
    x = _block_d(b, x, "Mixed_7a")
    for name in ("Mixed_7b", "Mixed_7c"):
        x = _block_e(b, x, name)
    x = b.dropout(b.global_average_pool(x))
    return b.dense(b.flatten(x), "fc", 1000)


def _conv(
    b: GraphBuilder,
    x: str,
    name: str,
    *,
    channels: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> str:
    return b.conv_bn_relu(x, name, channels, kernel=kernel, stride=stride, padding=padding, epsilon=EPSILON)


def _tall(b: GraphBuilder, x: str, name: str, *, channels: int, length: int) -> str:
    return _conv(b, x, name, channels=channels, kernel=(length, 1), padding=(length // 2, 0))


def _wide(b: GraphBuilder, x: str, name: str, *, channels: int, length: int) -> str:
    return _conv(b, x, name, channels=channels, kernel=(1, length), padding=(0, length // 2))


def _pool_branch(b: GraphBuilder, x: str, name: str, channels: int) -> str:
    return _conv(b, b.average_pool(x, 3, 1, padding=1), f"{name}.branch_pool", channels=channels, kernel=1)


def _block_a(b: GraphBuilder, x: str, name: str, pool_channels: int) -> str:
    """Add a block at 35x35 (figure 5)."""
    one = _conv(b, x, f"{name}.branch1x1", channels=64, kernel=1)
    five = _conv(b, x, f"{name}.branch5x5_1", channels=48, kernel=1)
    five = _conv(b, five, f"{name}.branch5x5_2", channels=64, kernel=5, padding=2)
    double = _conv(b, x, f"{name}.branch3x3dbl_1", channels=64, kernel=1)
    double = _conv(b, double, f"{name}.branch3x3dbl_2", channels=96, kernel=3, padding=1)
    double = _conv(b, double, f"{name}.branch3x3dbl_3", channels=96, kernel=3, padding=1)
    return b.concat([one, five, double, _pool_branch(b, x, name, pool_channels)])


def _block_b(b: GraphBuilder, x: str, name: str) -> str:
    """Add the reduction from 35x35 to 17x17 (figure 10)."""
    three = _conv(b, x, f"{name}.branch3x3", channels=384, kernel=3, stride=2)
    double = _conv(b, x, f"{name}.branch3x3dbl_1", channels=64, kernel=1)
    double = _conv(b, double, f"{name}.branch3x3dbl_2", channels=96, kernel=3, padding=1)
    double = _conv(b, double, f"{name}.branch3x3dbl_3", channels=96, kernel=3, stride=2)
    return b.concat([three, double, b.max_pool(x, 3, 2)])


def _block_c(b: GraphBuilder, x: str, name: str, inner: int) -> str:
    """Add a block at 17x17 with 1x7 and 7x1 factors (figure 6)."""
    one = _conv(b, x, f"{name}.branch1x1", channels=192, kernel=1)
    seven = _conv(b, x, f"{name}.branch7x7_1", channels=inner, kernel=1)
    seven = _wide(b, seven, f"{name}.branch7x7_2", channels=inner, length=7)
    seven = _tall(b, seven, f"{name}.branch7x7_3", channels=192, length=7)
    double = _conv(b, x, f"{name}.branch7x7dbl_1", channels=inner, kernel=1)
    double = _tall(b, double, f"{name}.branch7x7dbl_2", channels=inner, length=7)
    double = _wide(b, double, f"{name}.branch7x7dbl_3", channels=inner, length=7)
    double = _tall(b, double, f"{name}.branch7x7dbl_4", channels=inner, length=7)
    double = _wide(b, double, f"{name}.branch7x7dbl_5", channels=192, length=7)
    return b.concat([one, seven, double, _pool_branch(b, x, name, 192)])


def _block_d(b: GraphBuilder, x: str, name: str) -> str:
    """Add the reduction from 17x17 to 8x8."""
    three = _conv(b, x, f"{name}.branch3x3_1", channels=192, kernel=1)
    three = _conv(b, three, f"{name}.branch3x3_2", channels=320, kernel=3, stride=2)
    seven = _conv(b, x, f"{name}.branch7x7x3_1", channels=192, kernel=1)
    seven = _wide(b, seven, f"{name}.branch7x7x3_2", channels=192, length=7)
    seven = _tall(b, seven, f"{name}.branch7x7x3_3", channels=192, length=7)
    seven = _conv(b, seven, f"{name}.branch7x7x3_4", channels=192, kernel=3, stride=2)
    return b.concat([three, seven, b.max_pool(x, 3, 2)])


def _block_e(b: GraphBuilder, x: str, name: str) -> str:
    """Add a block at 8x8 with the last factors side by side (figure 7)."""
    one = _conv(b, x, f"{name}.branch1x1", channels=320, kernel=1)
    three = _conv(b, x, f"{name}.branch3x3_1", channels=384, kernel=1)
    three_wide = _wide(b, three, f"{name}.branch3x3_2a", channels=384, length=3)
    three_tall = _tall(b, three, f"{name}.branch3x3_2b", channels=384, length=3)
    double = _conv(b, x, f"{name}.branch3x3dbl_1", channels=448, kernel=1)
    double = _conv(b, double, f"{name}.branch3x3dbl_2", channels=384, kernel=3, padding=1)
    double_wide = _wide(b, double, f"{name}.branch3x3dbl_3a", channels=384, length=3)
    double_tall = _tall(b, double, f"{name}.branch3x3dbl_3b", channels=384, length=3)
    values = [one, three_wide, three_tall, double_wide, double_tall, _pool_branch(b, x, name, 192)]
    return b.concat(values)
