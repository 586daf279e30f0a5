"""The operator that multiplies pairs of matrices, both of which a network computes (as attention does).

Matrices of bytes (uint8) come with the zero points of both, and the bytes less these are multiplied. The product
is int32 then, without rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from templates.integers import INTEGERS, SUMS
from templates.operator import Operator, TensorSpec, View
from tuning_db.record import Workload

_BYTES, _POINTS = 256, (131, 117)
_LARGE = 1e4, 8.0  # in half precision products may not be larger than 65504


@dataclass(frozen=True)
class BatchMatmul(View):
    """A workload that multiplies `batch` pairs of matrices, (rows, depth) by (depth, columns).

    If `transposed`, the second matrices are given as (columns, depth). Raises ValueError for a size below one.
    """

    op = "batch_matmul"

    batch: int
    rows: int
    depth: int
    columns: int
    transposed: bool = False

    def __post_init__(self) -> None:
        if min(self.batch, self.rows, self.depth, self.columns) < 1:
            raise ValueError(f"batch_matmul: {self} has no product")

    @property
    def flop(self) -> float:
        return 2.0 * self.batch * self.rows * self.depth * self.columns

    @property
    def second_shape(self) -> tuple[int, int, int]:
        columns_first = self.batch, self.columns, self.depth
        return columns_first if self.transposed else (self.batch, self.depth, self.columns)


class BatchMatmulOperator(Operator):
    """The operator that `BatchMatmul` describes, with NumPy's product in float64 as the reference."""

    view = BatchMatmul

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        product = BatchMatmul.of(workload)
        first = TensorSpec("first", (product.batch, product.rows, product.depth), workload.dtype)
        matrices = first, TensorSpec("second", product.second_shape, workload.dtype)
        return (*matrices, TensorSpec("points", (2,), SUMS)) if workload.dtype == INTEGERS else matrices

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        product = BatchMatmul.of(workload)
        dtype = SUMS if workload.dtype == INTEGERS else workload.dtype
        return (TensorSpec("product", (product.batch, product.rows, product.columns), dtype),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        first, second, *points = self.inputs(workload)
        if points:
            matrices = (rng.integers(0, _BYTES, spec.shape, INTEGERS) for spec in (first, second))
            return (*matrices, np.array(_POINTS, SUMS))
        return tuple(rng.standard_normal(spec.shape).astype(spec.dtype) for spec in (first, second))

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        first, second, *points = inputs
        if points:
            for least, most, *ends in ((0, 255, 255, 0), (255, 255, 0, 0), (255, 0, 255, 255), (0, 0, 255, 255)):
                matrices = np.full_like(first, least), np.full_like(second, most)
                yield f"{least} x {most} with zero points {ends}", (*matrices, np.array(ends, SUMS))
            return
        large = np.asarray(_LARGE[workload.dtype == "float16"], first.dtype)
        yield "large values", (first * large, second * large)
        yield "zeros", (np.zeros_like(first), second)
        hole = first.copy()
        hole[-1, -1, 0] = np.nan
        yield "a NaN", (hole, second)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        first, second, *points = inputs
        wide = np.int64 if points else np.float64
        less = points[0] if points else (0, 0)
        first, second = first.astype(wide) - less[0], second.astype(wide) - less[1]
        return (first @ (second.swapaxes(1, 2) if BatchMatmul.of(workload).transposed else second),)


OPERATOR = BatchMatmulOperator()
