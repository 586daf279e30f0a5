"""The template that computes a 1x1 convolution with a stride on a CPU by gathering the pixels first.

On the gathered pixels the convolution has no stride. Without gathering, half of every cache line that a stride of 2
meets would never be used, and tiles would end with the short rows of the output. The gathered pixels are few, lie
densely, and are one flat axis (see `templates.direct`).
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
    """A template that has the knobs of `DirectConv`, for the convolution on the gathered pixels."""

    name = "cpu.conv2d_gathered"
    version = 1

    def _problem(self, workload: Workload, target: Target) -> DirectProblem:
        conv = conv_of(workload)
        dense = replace(conv, height=conv.out_height, width=conv.out_width, strides=(1, 1))
        blocks, dtype = blocking(conv, vector_unit(target, workload.dtype).lanes), workload.dtype
        return DirectProblem(dense, blocks, False, dtype=dtype, gathered=conv, summed=dtype)

    def applies(self, conv: Conv2d, lanes: int) -> bool:
        pointwise = conv.kernel == (1, 1) and not any(conv.padding)
        return pointwise and conv.strides != (1, 1) and super().applies(conv, lanes)
