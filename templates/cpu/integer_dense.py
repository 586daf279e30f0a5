"""The template that computes dense layers of 8-bit integers on a CPU with instructions for it (`cpu.dot_products`)."""

from __future__ import annotations

from tvm.target import Target

from templates.cpu.dot_dense import DotDense
from templates.cpu.dot_products import Products, multiplied_by, products_of
from templates.integers import INTEGERS


class IntegerDense(DotDense):
    """A template that has the knobs of `DotDense`, for integers."""

    name = "cpu.dense_integer"
    dtypes = (INTEGERS,)

    def products(self, target: Target) -> Products | None:
        """Return how a target multiplies. Weights are narrow, as few rows share what is read of them."""
        return multiplied_by(target, narrow=True) if products_of(target) is not None else None
