"""Winograd's minimal filtering F(m, 3): its matrices, products with their rows as TVM expressions, weights and tiles.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from templates.blocking import Blocking
from templates.workloads import Conv2d

# Per m: B^T (input), G (weight), A^T (output), for the points 0, 1, -1 (and 2, -2), infinity.
MATRICES: dict[int, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}


def linear(row: Sequence[float], get: Callable[[int], Any]) -> Any:
    """The sum of row[j] * get(j), without zeros and with subtractions for -1."""
    total = None
    for j, factor in enumerate(row):
        if factor == 0:
            continue
        size = abs(float(factor))
        term = get(j) if size == 1 else get(j) * tirx.const(size, "float32")
        if total is None:
            total = term if factor > 0 else tirx.const(0.0, "float32") - term
        else:
            total = total + term if factor > 0 else total - term
    return total


def row_of(
    matrix: Sequence[Sequence[float]], index: Any, get: Callable[[int], Any], choose: Callable[..., Any] = tirx.Select
) -> Any:
    """The `index`-th row times a vector; the choices fold away where the loop over `index` is unrolled.

    `choose(condition, value, other)`: tirx.if_then_else where the code is OpenCL, whose vectors' select tests another
    bit than the one that a true condition, made a vector, sets.
    """
    value = linear(matrix[-1], get)
    for i in range(len(matrix) - 2, -1, -1):
        value = choose(index == i, linear(matrix[i], get), value)
    return value


def transformed_weight(m: int, blocks: Blocking, weight: np.ndarray) -> np.ndarray:
    """U = G w G^T of a 3 x 3 convolution's weight, computed in float64: (m+2, m+2, out blocks, in blocks, in lanes,
    out lanes)."""
    g, a = np.array(MATRICES[m][1]), m + 2
    k, c, _, _ = weight.shape
    # G w G^T as one product with the Kronecker square of G: (a*a, 9) x (9, K*C)
    u = np.kron(g, g) @ weight.astype(np.float64).reshape(k * c, 9).T
    pad_out, pad_in = blocks.out_blocks * blocks.lanes - k, blocks.in_blocks * blocks.in_lanes - c
    u = np.pad(u.reshape(-1, k, c), ((0, 0), (0, pad_out), (0, pad_in)))
    u = u.reshape(a, a, blocks.out_blocks, blocks.lanes, blocks.in_blocks, blocks.in_lanes)
    return np.ascontiguousarray(u.transpose(0, 1, 2, 4, 5, 3), dtype=np.float32)


@dataclass(frozen=True)
class WinogradTiles:
    """`tiles_y` x `tiles_x` tiles of m x m output pixels cover each image."""

    conv: Conv2d
    blocks: Blocking
    m: int

    @property
    def a(self) -> int:
        return self.m + 2

    @property
    def tiles_y(self) -> int:
        return -(-self.conv.out_height // self.m)

    @property
    def tiles_x(self) -> int:
        return -(-self.conv.out_width // self.m)

    @property
    def tile_rows(self) -> int:
        """Of all images."""
        return self.conv.batch * self.tiles_y

    @property
    def tiles(self) -> int:
        """Of all images."""
        return self.tile_rows * self.tiles_x


def suits_winograd(conv: Conv2d, lanes: int) -> bool:
    """Whether the templates compute it: 3x3 without stride, dilation or groups, whole vectors of channels, and images
    that are not smaller than a tile."""
    if (conv.kernel, conv.strides, conv.dilation, conv.groups) != ((3, 3), (1, 1), (1, 1), 1):
        return False
    return conv.in_channels >= lanes and min(conv.out_height, conv.out_width) >= 4
