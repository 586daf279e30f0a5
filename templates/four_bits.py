"""The operator that multiplies by a constant matrix of 4-bit numbers, as large language models have them.

Start at `FourBits`. Along the inputs of an output feature each `block` numbers have a scale and, if they have such, a
zero point (default: 8). A weight is (number - zero point) * scale.

Sixteen output features form a tile. Eight consecutive inputs of one output feature are a word of 32 bits, the first in
its lowest bits. So a vector of words has the weights of a tile for eight inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from templates.operator import Operator, TensorSpec, View
from tuning_db.record import Workload

TILE = 16  # output features of a tile
WORD = 8  # inputs whose numbers are one word
MIDDLE = 8  # the zero point of numbers that have no other


@dataclass(frozen=True)
class FourBits(View):
    """A workload that multiplies data (rows, in_features) by a matrix with so many output features. `zeros` says
    whether blocks have zero points. Raises ValueError for sizes that do not fit."""

    op = "dense_4bit"

    rows: int
    in_features: int
    out_features: int
    block: int = 32
    zeros: bool = False

    def __post_init__(self) -> None:
        if min(self.rows, self.in_features, self.out_features, self.block) < 1:
            raise ValueError(f"dense_4bit: {self} has no product")
        if self.in_features % self.block or self.block % WORD:
            raise ValueError(f"dense_4bit: {self.in_features} inputs are no whole blocks of {self.block} in words of 8")

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.in_features * self.out_features

    @property
    def tiles(self) -> int:
        return -(-self.out_features // TILE)

    @property
    def blocks(self) -> int:
        return self.in_features // self.block


def packed(numbers: np.ndarray, block: int) -> np.ndarray:
    """Pack numbers from 0 to 15, (out, in), as (tiles, blocks, words of a block, 16), int32. The last tile is filled up
    with zeros."""
    out, inputs = numbers.shape
    tiles = -(-out // TILE)
    filled = np.pad(numbers, ((0, tiles * TILE - out), (0, 0))).astype(np.uint32)
    words = filled.reshape(tiles, TILE, inputs // block, block // WORD, WORD)
    shifted = words << (4 * np.arange(WORD, dtype=np.uint32))
    whole = np.bitwise_or.reduce(shifted, axis=-1)
    return np.ascontiguousarray(whole.transpose(0, 2, 3, 1)).view(np.int32)


def in_tiles(values: np.ndarray) -> np.ndarray:
    """Return values of blocks, (out, blocks), as (tiles, blocks, 16), filled up with zeros."""
    out, blocks = values.shape
    tiles = -(-out // TILE)
    filled = np.pad(values, ((0, tiles * TILE - out), (0, 0)))
    return np.ascontiguousarray(filled.reshape(tiles, TILE, blocks).transpose(0, 2, 1))


def dequantised(view: FourBits, weight: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None) -> np.ndarray:
    """Return the matrix that packed operands stand for, (out, in), in the type of the scale."""
    words = weight.view(np.uint32).transpose(0, 3, 1, 2)[..., None]
    numbers = (words >> (4 * np.arange(WORD, dtype=np.uint32))) & 15
    numbers = numbers.reshape(view.tiles * TILE, view.blocks, view.block).astype(scale.dtype)

    def each(values: np.ndarray) -> np.ndarray:
        return values.transpose(0, 2, 1).reshape(-1, view.blocks, 1)

    less = numbers - (MIDDLE if zero is None else each(zero).astype(scale.dtype))
    return np.ascontiguousarray((less * each(scale)).reshape(-1, view.in_features)[: view.out_features])


class FourBitsOperator(Operator):
    """The operator that `FourBits` describes."""

    view = FourBits

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        view = FourBits.of(workload)
        each = view.tiles, view.blocks, TILE
        found = (
            TensorSpec("data", (view.rows, view.in_features), "float32"),
            TensorSpec("weight", (view.tiles, view.blocks, view.block // WORD, TILE), "int32"),
            TensorSpec("scale", each, "float32"),
        )
        return (*found, TensorSpec("zero", each, "uint8")) if view.zeros else found

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        view = FourBits.of(workload)
        return (TensorSpec("product", (view.rows, view.out_features), "float32"),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        data, weight, scale, *zero = self.inputs(workload)
        limits = np.iinfo(np.int32)
        return (
            rng.standard_normal(data.shape).astype(np.float32),
            rng.integers(limits.min, limits.max, weight.shape, np.int32, endpoint=True),
            (rng.uniform(0.5, 1.5, scale.shape) / (4 * np.sqrt(data.shape[1]))).astype(np.float32),
            *(rng.integers(0, 16, spec.shape, np.uint8) for spec in zero),
        )

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        data, weight, *others = inputs
        yield "large values", (data * np.float32(1e4), weight, *others)
        yield "zeros", (np.zeros_like(data), weight, *others)
        yield "the largest numbers", (data, np.full_like(weight, -1), *others)
        hole = data.copy()
        hole[-1, 0] = np.nan
        yield "a NaN", (hole, weight, *others)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        data, weight, scale, *zero = inputs
        matrix = dequantised(FourBits.of(workload), weight, scale.astype(np.float64), *zero)
        return (data.astype(np.float64) @ matrix.T,)


OPERATOR = FourBitsOperator()
