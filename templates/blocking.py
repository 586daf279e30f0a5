"""The division of a convolution's channels into vector blocks, and weights packed accordingly. Start at `blocking`.

Groups whose channels do not fill whole vectors are merged until they do, in the extreme into one dense convolution.
The packed weight holds zeros where channels of a merged group are not connected, so that convolutions with any number
of groups are vectorised alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from templates.workloads import Conv2d


@dataclass(frozen=True)
class Blocking:
    """The block counts of a convolution whose channels are cut into blocks.

    `groups` is the number of groups after merging. Each group has `in_blocks` input blocks and `out_blocks` output
    blocks. An output block holds `lanes` channels. An input block holds `in_lanes`, which are fewer than a vector where
    a group has fewer input channels than that (as in a network's first layer).
    """

    groups: int
    in_blocks: int
    out_blocks: int
    in_lanes: int
    lanes: int

    @property
    def all_out_blocks(self) -> int:
        return self.groups * self.out_blocks

    def padded(self, ob: int) -> Blocking:
        """Return a blocking with enough additional output blocks, of zeros, for whole register tiles of `ob` blocks."""
        return replace(self, out_blocks=-(-self.out_blocks // ob) * ob)

    def out_tiles(self, limit: int) -> tuple[int, ...]:
        """Return the numbers of output blocks, up to `limit`, that a register tile may have.

        Only convolutions without groups may be padded with further blocks. With groups a number has to divide.
        """
        return tile_sizes(self.out_blocks, limit) if self.groups == 1 else divisors(self.out_blocks, limit)

    def register_tiles(self, extent: int, registers: int, *, broadcasts: bool = False) -> list[tuple[int, int]]:
        """Return the register tiles, (output blocks, positions out of `extent`), that fit into `registers` vectors.

        Tiles with the fewest loads per useful multiply-add come first. If it `broadcasts`, each position in a tile
        costs as much as a multiply-add. Then those with the fewest such come first, and of these the largest ones.
        """

        def cost(tile: tuple[int, int]) -> tuple[int, int]:
            count = -(-self.out_blocks // tile[0]) * -(-extent // tile[1])
            if broadcasts:
                return count * (tile[0] + 1) * tile[1], -tile[0] * tile[1]
            return count * sum(tile), 0

        blocks = self.out_tiles(8 if broadcasts else 4)
        return sorted(((ob, t) for ob in blocks for t in range(1, min(extent, registers // ob) + 1)), key=cost)

    def first_input(self, out_block: Any) -> Any:
        """Return the index of the first input block that an output block reads, as an int or a TVM expression."""
        return 0 if self.groups == 1 else out_block // self.out_blocks * self.in_blocks


def blocking(conv: Conv2d, lanes: int) -> Blocking:
    """Compute the block counts of a convolution for vectors of `lanes` channels."""
    per_in, per_out = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    merge = next(
        t
        for t in range(1, conv.groups + 1)
        if conv.groups % t == 0 and (t == conv.groups or (t * per_in % lanes == 0 and t * per_out % lanes == 0))
    )
    group_in, group_out = merge * per_in, merge * per_out
    in_lanes = min(lanes, group_in)
    return Blocking(conv.groups // merge, -(-group_in // in_lanes), -(-group_out // lanes), in_lanes, lanes)


def dense_groups(conv: Conv2d, weight: np.ndarray, groups: int) -> np.ndarray:
    """Return a weight for the same convolution with only `groups` groups: block-diagonal, and zero elsewhere.

    `weight` is (K, C / conv.groups, R, S), the result (K, C / groups, R, S).
    """
    merge = conv.groups // groups
    if merge == 1:
        return weight
    k, per_in, r, s = weight.shape
    per_out = k // conv.groups
    out = np.zeros((groups, merge, per_out, merge, per_in, r, s), weight.dtype)
    source = weight.reshape(groups, merge, per_out, per_in, r, s)
    for i in range(merge):
        out[:, i, :, i] = source[:, i]
    return out.reshape(k, merge * per_in, r, s)


def pack_oihw(conv: Conv2d, blocks: Blocking, weight: np.ndarray) -> np.ndarray:
    """Pack a weight (K, C/groups, R, S) as (all out blocks, in blocks, R, S, in lanes, lanes), filled up with zeros."""
    w = dense_groups(conv, weight, blocks.groups)
    k, c, r, s = w.shape
    pad_in = blocks.in_blocks * blocks.in_lanes - c
    pad_out = blocks.all_out_blocks * blocks.lanes - k  # 0 where there are groups: merged groups fill their blocks
    w = np.pad(w, ((0, pad_out), (0, pad_in), (0, 0), (0, 0)))
    w = w.reshape(blocks.all_out_blocks, blocks.lanes, blocks.in_blocks, blocks.in_lanes, r, s)
    return np.ascontiguousarray(w.transpose(0, 2, 4, 5, 3, 1))


def divisors(number: int, limit: int) -> tuple[int, ...]:
    """Return the divisors of `number` up to `limit`, in ascending order."""
    return tuple(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def tile_sizes(extent: int, limit: int, waste: float = 0.13) -> tuple[int, ...]:
    """Return the tile lengths up to `limit` that divide `extent`, or whose whole tiles exceed it by at most `waste`.

    `waste` is a share of `extent`.
    """
    return tuple(
        t
        for t in range(1, min(extent, limit) + 1)
        if extent % t == 0 or (-(-extent // t) * t - extent) <= waste * extent
    )
