"""Write pooling in blocked layout as TVM expressions without conditions in their inner loops.

A window that hangs over the border reads the nearest pixel of the input instead. For a maximum, that pixel lies in the
window anyway. For an average, it gets the weight zero there. Start at `max_pool`, `average_pool` and `global_pool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from tvm import te, tirx

from templates.stages import as_float32, stored_as
from templates.template import Layout
from tuner.graph.lowering.emit import INDEX_DTYPE


@dataclass(frozen=True)
class Window:
    """A window that a pooling moves over its input. `padding` is (top, left, bottom, right), and `out` is (height,
    width) of the result."""

    shape: tuple[int, int, int, int]  # of the plain input
    out: tuple[int, int]
    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]

    def start(self, axis: int, at: Any) -> Any:
        return at * self.strides[axis] - self.padding[axis]

    def touches_input(self) -> bool:
        """Return whether, for each pixel of a window outside the input, the nearest input pixel is in that window."""
        if self.dilation != (1, 1):
            return not any(self.padding) and all(
                self.start(a, self.out[a] - 1) + self.dilation[a] * (self.size[a] - 1) < self.shape[2 + a]
                for a in (0, 1)
            )
        return all(
            self.start(a, 0) + self.size[a] > 0 and self.start(a, self.out[a] - 1) < self.shape[2 + a] for a in (0, 1)
        )

    def counts(self, axis: int, include_pad: bool) -> np.ndarray:
        """Return how many pixels of each window along an axis count in the average."""
        low = -self.padding[axis] if include_pad else 0
        high = self.shape[2 + axis] + (self.padding[axis + 2] if include_pad else 0)
        at = self.start(axis, np.arange(self.out[axis]))[:, None]
        taps = at + self.dilation[axis] * np.arange(self.size[axis])
        return ((taps >= low) & (taps < high)).sum(axis=1)

    def inside(self, axis: int) -> bool:
        """Return whether no window hangs over the border along an axis."""
        return bool(
            self.padding[axis] == 0
            and self.start(axis, self.out[axis] - 1) + self.dilation[axis] * (self.size[axis] - 1)
            < self.shape[2 + axis]
        )


def max_pool(window: Window, layout: Layout, dtype: str) -> tirx.PrimFunc:
    """Return the function data -> maximum, where both are blocked. It requires window.touches_input()."""
    data = te.placeholder(layout.shape(window.shape), name="data", dtype=dtype)

    def value(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        taps = [data[n, c, _clamped(window, 0, y, i), _clamped(window, 1, x, j), v] for i, j in _taps(window)]
        return reduce(tirx.max, taps)

    out = te.compute(_out_shape(window, layout), value, name="max_pool")
    return te.create_prim_func([data, out], index_dtype_override=INDEX_DTYPE)


def average_pool(window: Window, layout: Layout, dtype: str) -> tirx.PrimFunc:
    """Return the function (data, weights of rows, weights of columns) -> weighted sum, which sums in float32. See
    `average_weights` for the weights."""
    data = te.placeholder(layout.shape(window.shape), name="data", dtype=dtype)
    rows = te.placeholder((window.out[0], window.size[0]), name="rows")
    columns = te.placeholder((window.out[1], window.size[1]), name="columns")

    def value(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        sums = []
        for i in range(window.size[0]):
            read = [
                as_float32(data[n, c, _clamped(window, 0, y, i), _clamped(window, 1, x, j), v], dtype)
                * (columns[x, j] if not window.inside(1) else columns[0, 0])
                for j in range(window.size[1])
            ]
            sums.append(reduce(lambda a, b: a + b, read) * rows[y, i])
        return stored_as(reduce(lambda a, b: a + b, sums), dtype)

    out = te.compute(_out_shape(window, layout), value, name="average_pool")
    return te.create_prim_func([data, rows, columns, out], index_dtype_override=INDEX_DTYPE)


def average_weights(window: Window, include_pad: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each output row (column) and tap, one over the number of counted pixels. It is zero for a tap outside
    the input."""
    weights = []
    for axis in (0, 1):
        taps = window.start(axis, np.arange(window.out[axis]))[:, None]
        taps = taps + window.dilation[axis] * np.arange(window.size[axis])
        valid = (taps >= 0) & (taps < window.shape[2 + axis])
        counts = np.maximum(window.counts(axis, include_pad), 1)[:, None]
        weights.append(np.where(valid, 1.0 / counts, 0.0).astype(np.float32))
    return weights[0], weights[1]


def global_pool(shape: Sequence[int], layout: Layout, kind: str, dtype: str) -> tirx.PrimFunc:
    """Return the function data -> mean or maximum over height and width. Its result is blocked, of height and width 1.

    It sums in float32, first each row and then the rows: one sum of as many terms as an image has pixels loses digits.
    """
    n, _, h, w = shape
    data = te.placeholder(layout.shape(shape), name="data", dtype=dtype)
    y, x = te.reduce_axis((0, h), "y"), te.reduce_axis((0, w), "x")
    blocks = layout.shape(shape)[1]
    fold = te.max if kind == "max" else te.sum
    rows = te.compute(
        (n, blocks, h, layout.block),
        lambda b, c, i, v: fold(as_float32(data[b, c, i, x, v], dtype), axis=x),
        name="rows",
    )
    folded = te.compute((n, blocks, layout.block), lambda b, c, v: fold(rows[b, c, y, v], axis=y), name="folded")
    scale = tirx.const(1.0 if kind == "max" else 1.0 / (h * w), "float32")
    out = te.compute(
        (n, blocks, 1, 1, layout.block), lambda b, c, _y, _x, v: stored_as(folded[b, c, v] * scale, dtype), name="out"
    )
    return te.create_prim_func([data, out])


def _out_shape(window: Window, layout: Layout) -> tuple[int, ...]:
    return layout.shape((*window.shape[:2], *window.out))


def _taps(window: Window) -> list[tuple[int, int]]:
    return [(i, j) for i in range(window.size[0]) for j in range(window.size[1])]


def _clamped(window: Window, axis: int, at: Any, tap: int) -> Any:
    """Return the row (column) that a tap reads, which is the nearest one in the input."""
    index = window.start(axis, at) + tap * window.dilation[axis]
    if window.inside(axis):
        return index
    return tirx.min(tirx.max(index, 0), window.shape[2 + axis] - 1)
