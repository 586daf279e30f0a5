"""1x1 convolution with a stride (CPU): the pixels that it reads are gathered first, then it is one without a stride.

Of every cache line that a stride of 2 meets half is never used, and tiles end with the short rows of the output. What
is gathered is small, lies densely, and is one flat axis of pixels (see `direct`).
"""

from __future__ import annotations

from dataclasses import replace

from tvm.target import Target

from templates.blocking import blocking
from templates.cpu.direct import DirectConv
from templates.cpu.isa import vector_unit
from templates.direct import DirectProblem
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Workload


class GatheredConv(DirectConv):
    """Knobs: those of the direct template, for what is gathered."""

    name = "cpu.conv2d_gathered"
    version = 1

    def _problem(self, workload: Workload, target: Target) -> DirectProblem:
        conv = conv_of(workload)
        dense = replace(conv, height=conv.out_height, width=conv.out_width, strides=(1, 1))
        return DirectProblem(dense, blocking(conv, vector_unit(target).lanes), False, gathered=conv)

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        pointwise = conv.kernel == (1, 1) and not any(conv.padding)
        return pointwise and conv.strides != (1, 1) and super().applies(conv, lanes)
