"""The matrices of Winograd's minimal filtering F(m, 3), and products with their rows as TVM expressions.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

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


def row_of(matrix: Sequence[Sequence[float]], index: Any, get: Callable[[int], Any]) -> Any:
    """The `index`-th row times a vector; the selects fold away where the loop over `index` is unrolled."""
    value = linear(matrix[-1], get)
    for i in range(len(matrix) - 2, -1, -1):
        value = tirx.Select(index == i, linear(matrix[i], get), value)
    return value
