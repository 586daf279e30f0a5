"""The templates that compute direct convolutions of 8-bit integers on a CPU with dot products (`cpu.dot_products`).

They have the knobs and loops of `cpu.direct`. A step of the reduction loads `ob` vectors of weights, broadcasts four
input channels of each pixel, and adds the sum of four products to each of the sums in registers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm.target import Target

from templates.blocking import blocking, pack_oihw
from templates.cpu.direct import DirectConv
from templates.cpu.dot_products import has_dot_products
from templates.cpu.isa import vector_unit
from templates.direct import DirectProblem
from templates.integers import INTEGERS, QUAD
from templates.space import Space
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload


class IntegerConv(DirectConv):
    """A template that has the knobs of `DirectConv`, for integers."""

    name = "cpu.conv2d_integer"
    dtypes = (INTEGERS,)
    version = 1

    def _problem(self, workload: Workload, target: Target) -> DirectProblem:
        conv = conv_of(workload)
        blocks = blocking(conv, vector_unit(target).lanes)
        blocks = replace(blocks, in_lanes=-(-blocks.in_lanes // QUAD) * QUAD)
        return DirectProblem(conv, blocks, self.plain_data, dtype=INTEGERS)

    def space(self, workload: Workload, target: Target) -> Space | None:
        return super().space(workload, target) if has_dot_products(target) else None

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, target)
        packed = pack_oihw(problem.conv, problem.blocks.padded(config["ob"]), weight)
        *outer, depth, lanes = packed.shape
        return np.ascontiguousarray(packed.reshape(*outer, depth // QUAD, QUAD, lanes).swapaxes(-1, -2))


class IntegerConvPlain(IntegerConv):
    """A template that has the knobs of `IntegerConv` and reads NCHW input of fewer channels than a vector has lanes."""

    name = "cpu.conv2d_integer_nchw"
    plain_data = True

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        return conv.in_channels < lanes and conv.groups == 1
