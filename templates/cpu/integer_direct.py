"""The templates that compute direct convolutions of 8-bit integers on a CPU with instructions for it.

They have the knobs and loops of `cpu.direct`. A step of the reduction loads `ob` vectors of weights, broadcasts a few
input channels of each pixel, and adds the sum of their products to each of the sums in registers. `cpu.dot_products`
says how many they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm.target import Target

from templates.blocking import blocking, pack_oihw
from templates.cpu.direct import DirectConv
from templates.cpu.dot_products import multiplied_by, products_of
from templates.cpu.isa import vector_unit
from templates.direct import DirectProblem
from templates.integers import INTEGERS, lacking
from templates.space import Space
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload

_FEWEST = 4  # an input block has a multiple of so many channels


class IntegerConv(DirectConv):
    """A template that has the knobs of `DirectConv`, for integers."""

    name = "cpu.conv2d_integer"
    dtypes = (INTEGERS,)
    version = 1

    def _problem(self, workload: Workload, target: Target) -> DirectProblem:
        conv = conv_of(workload)
        blocks = blocking(conv, vector_unit(target).lanes)
        blocks = replace(blocks, in_lanes=-(-blocks.in_lanes // _FEWEST) * _FEWEST)
        return DirectProblem(conv, blocks, self.plain_data, dtype=INTEGERS, held=multiplied_by(target).held)

    def space(self, workload: Workload, target: Target) -> Space | None:
        return super().space(workload, target) if products_of(target) is not None else None

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, target)
        packed = pack_oihw(problem.conv, problem.blocks.padded(config["ob"]), weight)
        *outer, depth, lanes = packed.shape
        held = problem.held
        packed = packed.reshape(*outer, depth // held.group, held.group, lanes).swapaxes(-1, -2)
        if held.moved:
            last = np.zeros_like(packed[:, :1])
            last[:, 0, 0, 0, : 4 // held.group] = lacking(packed, held.group)
            packed = np.concatenate([packed, last], 1)
        return np.ascontiguousarray(packed, held.weight)


class IntegerConvPlain(IntegerConv):
    """A template that has the knobs of `IntegerConv` and reads NCHW input of fewer channels than a vector has lanes."""

    name = "cpu.conv2d_integer_nchw"
    plain_data = True

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        return conv.in_channels < lanes and conv.groups == 1
