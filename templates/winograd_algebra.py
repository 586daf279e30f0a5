"""Winograd's minimal filtering F(m, 3), as far as it does not depend on the device.

`MATRICES` has the transforms, `row_of` multiplies by a row of one as a TVM expression, `transformed_weight` transforms
a weight, and `WinogradTiles` counts the tiles of a convolution.

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

# For each m the matrices B^T (input), G (weight) and A^T (output). The interpolation points are 0, 1, -1 and infinity,
# for m = 4 also 2 and -2.
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
    """Return the sum of row[j] * get(j).

    Zeros are left out, factors of 1 and -1 need no multiplication, and terms with negative factors are subtracted.
    """
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
    """Multiply the `index`-th row of a matrix by the vector whose j-th element is get(j).

    The row is selected by a chain of `choose(condition, value, other)`, which folds away if the loop over `index` is
    unrolled. OpenCL code must choose by tirx.if_then_else: OpenCL's vector select tests the highest bit of a lane,
    which TVM does not set when it widens a true condition to a vector.
    """
    value = linear(matrix[-1], get)
    for i in range(len(matrix) - 2, -1, -1):
        value = choose(index == i, linear(matrix[i], get), value)
    return value


def transformed_weight(m: int, blocks: Blocking, weight: np.ndarray) -> np.ndarray:
    """Transform and pack a 3 x 3 convolution's weight w to U = G w G^T, which is computed in float64.

    The result is float32, (m+2, m+2, out blocks, in blocks, in lanes, out lanes).
    """
    g, a = np.array(MATRICES[m][1]), m + 2
    k, c, _, _ = weight.shape
    # G w G^T is one product with the Kronecker square of G: (a*a, 9) x (9, K*C).
    u = np.kron(g, g) @ weight.astype(np.float64).reshape(k * c, 9).T
    pad_out, pad_in = blocks.out_blocks * blocks.lanes - k, blocks.in_blocks * blocks.in_lanes - c
    u = np.pad(u.reshape(-1, k, c), ((0, 0), (0, pad_out), (0, pad_in)))
    u = u.reshape(a, a, blocks.out_blocks, blocks.lanes, blocks.in_blocks, blocks.in_lanes)
    return np.ascontiguousarray(u.transpose(0, 1, 2, 4, 5, 3), dtype=np.float32)


@dataclass(frozen=True)
class WinogradTiles:
    """The tiles that a Winograd convolution computes: `tiles_y` x `tiles_x` of m x m output pixels cover each image."""

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
        """Count the rows of tiles of all images."""
        return self.conv.batch * self.tiles_y

    @property
    def tiles(self) -> int:
        """Count the tiles of all images."""
        return self.tile_rows * self.tiles_x


def suits_winograd(conv: Conv2d, lanes: int) -> bool:
    """Tell whether the Winograd templates compute a convolution.

    They need a 3x3 kernel without stride, dilation or groups, at least `lanes` input channels, and images of at least
    4 x 4 output pixels, which is one tile for m = 4.
    """
    if (conv.kernel, conv.strides, conv.dilation, conv.groups) != ((3, 3), (1, 1), (1, 1), 1):
        return False
    return conv.in_channels >= lanes and min(conv.out_height, conv.out_width) >= 4
