"""The sizes of the tiles that `templates.gpu.running_attention` computes. Start at `RowTile`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from templates.attention import Attention
from templates.space import Values

_SKEW_BYTES = 16  # added to rows in local memory, so that neighbouring rows lie in different banks
_COPY_BYTES = 16  # of the widest load


class Matrix(NamedTuple):
    """A matrix in local memory, whose rows are `step` values apart."""

    rows: int
    columns: int
    step: int

    @property
    def size(self) -> int:
        """Return how many values there are from the first to the last."""
        return (self.rows - 1) * self.step + self.columns


@dataclass(frozen=True)
class RowTile:
    """The sizes that the values of knobs give to the tiles of a workload, of which a group computes one.

    Items are counted along rows and, fastest, along columns, which are keys in the first product and elements of a
    value in the second.
    """

    view: Attention
    v: Values
    dtype: str

    @property
    def items(self) -> int:
        return int(self.v["rt"] * self.v["ot"])

    @property
    def rows(self) -> int:
        """Return how many queries a group has."""
        return int(self.v["rt"] * self.v["ri"])

    @property
    def wide(self) -> int:
        """Return how many columns the items have together if each has a vector of them."""
        return int(self.v["ot"] * self.v["vec"])

    @property
    def keys(self) -> int:
        """Return how many keys are in local memory at a time."""
        return int(self.v["nb"]) * self.wide

    @property
    def key_tiles(self) -> int:
        return -(-self.view.columns // self.keys)

    @property
    def row_tiles(self) -> int:
        return -(-self.view.rows // self.rows)

    @property
    def groups(self) -> int:
        return self.view.batch * self.view.heads * self.row_tiles

    @property
    def value_vectors(self) -> int:
        """Return how many vectors of each row of the result an item has."""
        return -(-self.view.width // self.wide)

    @property
    def unrolled_keys(self) -> int:
        return math.gcd(self.v["ki"], self.keys)

    @property
    def _bytes(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def queries(self) -> Matrix:
        return self._matrix(self.rows, self.view.depth, self.dtype)

    @property
    def key_matrix(self) -> Matrix:
        """Return the keys of a tile, in which the elements of a key lie below each other."""
        return self._matrix(self.view.depth, self.keys, self.dtype)

    @property
    def value_matrix(self) -> Matrix:
        return self._matrix(self.keys, self.value_vectors * self.wide, self.dtype)

    @property
    def powers(self) -> Matrix:
        return self._matrix(self.rows, self.keys, "float32")

    def _matrix(self, rows: int, columns: int, dtype: str) -> Matrix:
        return Matrix(rows, columns, columns + _SKEW_BYTES // np.dtype(dtype).itemsize)

    @property
    def operand_size(self) -> int:
        """Return how many values the tile of keys takes, and after it that of values in the same memory."""
        return max(self.key_matrix.size, self.value_matrix.size)

    @property
    def operand_bytes(self) -> int:
        """Return the bytes of keys and values that all groups copy."""
        return self.groups * self.view.columns * (self.view.depth + self.view.width) * self._bytes

    @property
    def waste(self) -> float:
        """Return the ratio of the multiply-adds that are computed to those that are needed."""
        view, width = self.view, self.value_vectors * self.wide
        computed = self.row_tiles * self.rows * self.key_tiles * self.keys * (view.depth + width)
        return computed / (view.rows * view.columns * (view.depth + view.width))

    @property
    def local_bytes(self) -> int:
        stored = self.queries.size + self.operand_size
        return stored * self._bytes + 4 * (self.powers.size + self.rows * int(self.v["ot"]))

    def copied_at_once(self, name: str, matrix: Matrix) -> int:
        """Return how many values of an operand an item copies at a time to `matrix`: neighbours in a row, in memory
        and in local memory."""
        place, shape = self.view.operands[name]
        if place.element != 1 or matrix.columns != shape[-1]:
            return 1
        return math.gcd(matrix.columns, _COPY_BYTES // self._bytes)
