"""What the templates share that compute direct convolutions by an instruction that sums products: `DotConv`.

They have the knobs and loops of `cpu.direct`. A step of the reduction loads `ob` vectors of weights, broadcasts a few
input channels of each pixel, and adds the sum of their products to each of the sums in registers. The instructions,
which say how many they are, stand in `cpu.dot_products` and `cpu.bfloat_products`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
from tvm.target import Target

from templates.blocking import blocking, pack_oihw
from templates.cpu.direct import DirectConv
from templates.cpu.dot_products import Products, intrinsic
from templates.cpu.isa import vector_unit
from templates.direct import DirectProblem
from templates.integers import lacking
from templates.space import Space
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

_FEWEST = 4  # an input block has a multiple of so many channels


class DotConv(DirectConv):
    """A template that has the knobs of `DirectConv`. Rows are not skipped."""

    @abstractmethod
    def products(self, target: Target) -> Products | None:
        """Return the instruction by which a target multiplies, or None if it has none."""

    def _found(self, target: Target) -> Products:
        products = self.products(target)
        assert products is not None
        return products

    def _problem(self, workload: Workload, target: Target) -> DirectProblem:
        conv = conv_of(workload)
        blocks = blocking(conv, vector_unit(target).lanes)
        blocks = replace(blocks, in_lanes=-(-blocks.in_lanes // _FEWEST) * _FEWEST)
        return DirectProblem(conv, blocks, self.plain_data, dtype=workload.dtype, held=self._found(target).held)

    def _dot(self, target: Target) -> str | None:
        return intrinsic(self._found(target))

    def space(self, workload: Workload, target: Target) -> Space | None:
        return super().space(workload, target) if self.products(target) is not None else None

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
        return held.packed(packed)
