"""The templates that compute direct convolutions of 8-bit integers on a CPU with instructions for it."""

from __future__ import annotations

from tvm.target import Target

from templates.cpu.dot_direct import DotConv
from templates.cpu.dot_products import Products, products_of
from templates.integers import INTEGERS


class IntegerConv(DotConv):
    """A template that has the knobs of `DotConv`, for integers."""

    name = "cpu.conv2d_integer"
    dtypes = (INTEGERS,)
    version = 1

    def products(self, target: Target) -> Products | None:
        return products_of(target)


class IntegerConvPlain(IntegerConv):
    """A template that has the knobs of `IntegerConv` and reads NCHW input of fewer channels than a vector has lanes."""

    name = "cpu.conv2d_integer_nchw"
    plain_data = True
