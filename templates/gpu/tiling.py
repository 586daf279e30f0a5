"""This module derives groups, registers and local memory from the knob values of a direct convolution on a GPU.

Start at `Tiling`.
"""

from __future__ import annotations

from dataclasses import dataclass

from templates.blocking import Blocking
from templates.direct import DirectProblem
from templates.gpu.limits import GpuLimits
from templates.gpu.stages import Group, copy_width, vector_widths
from templates.space import Values

# With this `pad` an item copies the padded input of its pixels, all channels, once for all its tiles of channels.
PATCH = "patch"
SHARED = ("shared", "shared_local")  # values of `pad` with the padded input in local memory


def turns(v: Values) -> int:
    """Return how many tiles of output channels an item computes one after the other: 1 if the config does not say.

    Configs for GPUs do not have this knob.
    """
    return int(v.get("turns", 1))


@dataclass(frozen=True)
class Tiling:
    """A direct convolution on a device, with methods that derive groups, registers and memory from knob values."""

    problem: DirectProblem
    limits: GpuLimits

    def group(self, v: Values) -> Group:
        return Group(v["kt"], v["yt"], v["xt"] * (self.problem.blocks.lanes // v["vec"]))

    def tile(self, v: Values) -> tuple[int, int]:
        """Return how many rows and columns a group computes."""
        return v["yt"] * v["yi"], v["xt"] * v["xi"]

    def channel_blocks(self, v: Values) -> int:
        """Return how many output blocks a group computes."""
        return v["kt"] * v["ki"] * turns(v)

    def blocks(self, v: Values) -> Blocking:
        """Return the problem's blocking with the output blocks padded to whole groups."""
        return self.problem.blocks.padded(self.channel_blocks(v))

    def waste(self, v: Values) -> float:
        """Return the ratio of the results that are computed to those that are needed."""
        (th, tw), p = self.tile(v), self.problem
        pixels = p.tall(th) * p.wide(tw) / (p.rows * p.columns)
        return pixels * self.blocks(v).out_blocks / p.blocks.out_blocks

    def groups(self, v: Values) -> int:
        th, tw = self.tile(v)
        p = self.problem
        pixels = (p.tall(th) // th) * (p.wide(tw) // tw)
        return p.conv.batch * self.blocks(v).all_out_blocks // self.channel_blocks(v) * pixels

    def accumulators(self, v: Values) -> int:
        """Return how many vectors of `vec` sums an item holds."""
        return v["ki"] * v["yi"] * v["xi"]

    def sums(self, v: Values) -> int:
        """Return how many values an item keeps in registers: its sums, and on a GPU the input row.

        A CPU reads the input row from its stack.
        """
        row = 0
        if v["pad"] in ("local", "shared_local") and self.limits.family != "cpu":
            _, reach_x = self.problem.reach(1, v["xi"])
            row = v["yi"] * reach_x * self.row_lanes(v)
        return self.accumulators(v) * v["vec"] + row

    def row_lanes(self, v: Values) -> int:
        """Return how many channels an input row in registers has.

        It has a whole block's, unless `order` puts the loop over input channels outside of the row. Words of integers
        count as one.
        """
        return self.problem.depth if v["order"] == "c.kh.kw.i" else v["ui"]

    def unrolled(self, v: Values) -> int:
        """Return the number of vector multiply-adds in the longest unrolled body."""
        kh, kw = self.problem.conv.kernel
        return self.accumulators(v) * v["ui"] * (kw if v["unroll_kw"] else 1) * (kh if v["unroll_kh"] else 1)

    def local_bytes(self, v: Values) -> int:
        """Return the bytes of local memory that a group needs."""
        p = self.problem
        values = 0
        if v["pad"] in SHARED:
            reach_y, reach_x = p.reach(*self.tile(v))
            values += v["ct"] * p.blocks.in_lanes * reach_y * reach_x
        if v["wshared"]:
            kh, kw = p.conv.kernel
            values += v["kt"] * v["ki"] * v["ct"] * kh * kw * p.blocks.in_lanes * p.blocks.lanes
        return p.value_bytes * values * (2 if self.asynchronous(v) else 1)

    def patch_bytes(self, v: Values) -> int:
        """Return the bytes of the padded input of an item's pixels, all channels."""
        reach_y, reach_x = self.problem.reach(v["yi"], v["xi"])
        return (
            self.problem.value_bytes * self.problem.blocks.in_blocks * self.problem.blocks.in_lanes * reach_y * reach_x
        )

    def asynchronous(self, v: Values) -> bool:
        """Tell whether the next input blocks are copied while the current ones are computed with."""
        return bool(v.get("asynchronous", 0))

    def data_widths(self) -> tuple[int, ...]:
        """Return the lengths of vectors that the padded input can be copied in, longest first."""
        return vector_widths(self.limits, 1 if self.problem.plain_data else self.problem.depth)

    def row_width(self, v: Values) -> int:
        """Return how many values of an input row are copied into registers at a time."""
        return next(w for w in self.data_widths() if self.row_lanes(v) % w == 0)

    def copied_widths(self, v: Values) -> tuple[int, int]:
        """Return how many values of the input, and of the weights, an item copies into local memory at a time."""
        if not self.asynchronous(v):
            return self.data_widths()[0], v["vec"]
        read = self.row_width(v) if v["pad"] == "shared_local" else 1
        weights = vector_widths(self.limits, self.problem.blocks.lanes)
        return copy_width(self.data_widths(), read), copy_width(weights, v["vec"])
