"""The templates that multiply bfloat16 numbers on a CPU with instructions for it (`cpu.bfloat_products`).

They compute direct convolutions and dense layers. Data and results are float32: a stage "pad" converts the data before
they are multiplied, and weights are packed as bfloat16.
"""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from templates.bfloats import BFLOAT16
from templates.cpu.bfloat_products import bfloat_products_of, with_code
from templates.cpu.dot_dense import DotDense
from templates.cpu.dot_direct import DotConv
from templates.cpu.dot_products import Products
from templates.workloads import Conv2d
from tuning_db.record import Config, Workload


class BfloatConv(DotConv):
    """A template that has the knobs of `DotConv`, for bfloat16."""

    name = "cpu.conv2d_bfloat16"
    dtypes = (BFLOAT16,)
    version = 1

    def products(self, target: Target) -> Products | None:
        return bfloat_products_of(target)

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        """Return whether whole vectors of channels are multiplied. Products with zeros, which fill up small groups,
        would cost more than the instruction saves."""
        whole = conv.groups == 1 or min(conv.in_channels, conv.out_channels) // conv.groups >= lanes
        return whole and super().applies(conv, lanes)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        return with_code(super().prim_func(workload, target, config), self._found(target))


class BfloatConvPlain(BfloatConv):
    """A template that has the knobs of `BfloatConv` and reads NCHW input of fewer channels than a vector has lanes."""

    name = "cpu.conv2d_bfloat16_nchw"
    plain_data = True


class BfloatDense(DotDense):
    """A template that has the knobs of `DotDense`, for bfloat16."""

    name = "cpu.dense_bfloat16"
    dtypes = (BFLOAT16,)

    def products(self, target: Target) -> Products | None:
        return bfloat_products_of(target)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        return with_code(super().prim_func(workload, target, config), self._found(target))
