"""Builds NASNet-A (Zoph et al., 2018, figure 4) as TensorFlow's slim and its ports do: mobile (4 @ 1056, 224x224 input,
5.29 M parameters, 0.564 G multiply-adds) and large (6 @ 4032, 331x331, 88.75 M, 23.8 G). Every cell reads the two cells
before it; its blocks are five additions of two branches each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.zoo.builder import GraphBuilder

EPSILON = 1e-3
SQUEEZED = 0.25  # variance of the 1x1 convolutions that cells begin with, as the additions in cells make values larger


@dataclass(frozen=True)
class Value:
    """A value that has the height `size`, which is also its width."""

    name: str
    size: int


def mobile(b: GraphBuilder, batch: int) -> str:
    """Build NASNet-A (4 @ 1056) and return the name of its output."""
    return _Network(b).build(batch, size=224, stem=32, features=1056, repeats=4, skips=False)


def large(b: GraphBuilder, batch: int) -> str:
    """Build NASNet-A (6 @ 4032) and return the name of its output."""
    return _Network(b).build(batch, size=331, stem=96, features=4032, repeats=6, skips=True)


class _Network:
    """Builds cells on one graph. Padding is TensorFlow's SAME: with stride 2, an even size gets one pixel less before
    it than behind it."""

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b

    def build(self, batch: int, size: int, stem: int, features: int, repeats: int, skips: bool) -> str:
        """Build the network. With `skips`, the cell after a reduction reads the value before the last cell, not that of
        the last."""
        b, channels = self._b, features // 24
        x = b.conv(b.input("data", (batch, 3, size, size)), "conv0", stem, 3, 2)
        first = Value(b.batch_norm(x, "conv0.bn", epsilon=EPSILON), (size - 3) // 2 + 1)
        before = self._reduction("stem0", self._squeezed(first, "stem0.right", channels // 4), first, channels // 4)
        right = self._squeezed(before, "stem1.right", channels // 2)
        last = self._reduction("stem1", right, self._halved(first, "stem1.left", channels // 2), channels // 2)
        for stage in range(3):
            width = channels << stage
            if stage:
                name = f"reduction{stage}"
                right, left = (self._squeezed(v, f"{name}.{i}", width) for i, v in enumerate((last, before)))
                reduced = self._reduction(name, right, left, width)
                last, before = reduced, before if skips else last
            for i in range(repeats):
                last, before = self._normal(f"cell{stage}.{i}", last, before, width), last
        x = b.dropout(b.global_average_pool(b.relu(last.name)))
        return b.dense(b.flatten(x), "fc", 1000)

    def _normal(self, name: str, last: Value, before: Value, width: int) -> Value:
        right = self._squeezed(last, f"{name}.right", width)
        fits = before.size == last.size
        left = self._squeezed(before, f"{name}.left", width) if fits else self._halved(before, f"{name}.left", width)
        parts = [
            left,
            self._sum(
                self._separable(right, f"{name}.0l", width, kernel=5),
                self._separable(left, f"{name}.0r", width, kernel=3),
            ),
            self._sum(
                self._separable(left, f"{name}.1l", width, kernel=5),
                self._separable(left, f"{name}.1r", width, kernel=3),
            ),
            self._sum(self._average(right), left),
            self._sum(self._average(left), self._average(left)),
            self._sum(self._separable(right, f"{name}.4l", width, kernel=3), right),
        ]
        return Value(self._b.concat([part.name for part in parts]), last.size)

    def _reduction(self, name: str, right: Value, left: Value, width: int) -> Value:
        def branch(x: Value, suffix: str, kernel: int, stride: int = 2) -> Value:
            return self._separable(x, f"{name}.{suffix}", width, kernel=kernel, stride=stride)

        zero = self._sum(branch(right, "0l", 5), branch(left, "0r", 7))
        one = self._sum(self._maximum(right), branch(left, "1r", 7))
        two = self._sum(self._average(right, 2), branch(left, "2r", 5))
        three = self._sum(self._average(zero), one)
        four = self._sum(branch(zero, "4l", 3, 1), self._maximum(right))
        return Value(self._b.concat([part.name for part in (one, two, three, four)]), zero.size)

    def _squeezed(self, x: Value, name: str, width: int) -> Value:
        """Add ReLU, a 1x1 convolution and batch normalisation."""
        y = self._b.conv(self._b.relu(x.name), name, width, 1, gain=SQUEEZED)
        return Value(self._b.batch_norm(y, f"{name}.bn", epsilon=EPSILON), x.size)

    def _halved(self, x: Value, name: str, width: int) -> Value:
        """Take every second pixel, once from the first and once from the second pixel on, and map each to half of the
        channels."""
        b, y = self._b, self._b.relu(x.name)
        ends = [np.array(values, np.int64) for values in ((1, 1), (x.size, x.size), (2, 3))]
        shifted = b.node("Slice", [y, *map(b.constant, ends)], b.channels[y])
        if x.size % 2:
            pads = b.constant(np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64))
            shifted = b.node("Pad", [shifted, pads], b.channels[y])
        paths = [b.average_pool(path, 1, 2) for path in (y, shifted)]
        parts = [b.conv(path, f"{name}.{i}", width // 2, 1) for i, path in enumerate(paths)]
        return Value(b.batch_norm(b.concat(parts), f"{name}.bn", epsilon=EPSILON), (x.size + 1) // 2)

    def _separable(self, x: Value, name: str, width: int, *, kernel: int, stride: int = 1) -> Value:
        """Add ReLU, depthwise convolution, 1x1 convolution and batch normalisation twice; the first time has the
        stride."""
        b, y, size = self._b, x.name, x.size
        for i, step in enumerate((stride, 1)):
            y = b.relu(y)
            inner = b.channels[y]
            y = b.conv(y, f"{name}.{i}.depthwise", inner, kernel, step, _same(size, kernel, step), groups=inner)
            y = b.conv(y, f"{name}.{i}.pointwise", width, 1)
            y = b.batch_norm(y, f"{name}.{i}.bn", epsilon=EPSILON)
            size = -(-size // step)
        return Value(y, size)

    def _average(self, x: Value, stride: int = 1) -> Value:
        y = self._b.average_pool(x.name, 3, stride, padding=_same(x.size, 3, stride), include_pad=False)
        return Value(y, -(-x.size // stride))

    def _maximum(self, x: Value) -> Value:
        return Value(self._b.max_pool(x.name, 3, 2, padding=_same(x.size, 3, 2)), -(-x.size // 2))

    def _sum(self, one: Value, other: Value) -> Value:
        return Value(self._b.add(one.name, other.name), one.size)


def _same(size: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Return padding above, left, below and right such that the result has size / stride pixels, rounded up."""
    whole = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return whole // 2, whole // 2, whole - whole // 2, whole - whole // 2
