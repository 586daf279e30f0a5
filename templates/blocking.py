"""How a convolution's channels fall into vector blocks: merged groups, block counts, packed weights.

Groups whose channels do not fill whole vectors are merged until they do (in the limit into one dense convolution);
the packed weight holds zeros where a merged group has no connection, so every group count vectorises the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from templates.workloads import Conv2d


@dataclass(frozen=True)
class Blocking:
    """`groups` after merging; per group `in_blocks` and `out_blocks` blocks; input blocks hold `in_lanes` channels
    (fewer than a vector where a first layer reads its few channels as they are), output blocks `lanes`."""

    groups: int
    in_blocks: int
    out_blocks: int
    in_lanes: int
    lanes: int

    @property
    def all_out_blocks(self) -> int:
        return self.groups * self.out_blocks

    def padded(self, ob: int) -> Blocking:
        """With as many (zero) output blocks more as register tiles of `ob` blocks need."""
        return replace(self, out_blocks=-(-self.out_blocks // ob) * ob)

    def out_tiles(self, limit: int) -> tuple[int, ...]:
        """How many output blocks a register tile may take: padding is for convolutions without groups only."""
        return tile_sizes(self.out_blocks, limit) if self.groups == 1 else divisors(self.out_blocks, limit)

    def register_tiles(self, extent: int, registers: int) -> list[tuple[int, int]]:
        """Tiles of (output blocks, positions out of `extent`) that fit into `registers` vectors, those with the
        fewest loads per useful multiply-add first."""

        def loads(tile: tuple[int, int]) -> int:
            return -(-self.out_blocks // tile[0]) * -(-extent // tile[1]) * sum(tile)

        tiles = [(ob, t) for ob in self.out_tiles(4) for t in range(1, min(extent, registers // ob) + 1)]
        return sorted(tiles, key=loads)

    def first_input(self, out_block: Any) -> Any:
        """The first input block of an output block's group (an int or a TVM expression)."""
        return 0 if self.groups == 1 else out_block // self.out_blocks * self.in_blocks


def blocking(conv: Conv2d, lanes: int) -> Blocking:
    """Block counts of a convolution for vectors of `lanes` channels."""
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
    """The weight of the same convolution with only `groups` groups: block-diagonal, zeros elsewhere.

    weight: (K, C / conv.groups, R, S); returns (K, C / groups, R, S).
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
    """(K, C/groups, R, S) to (all out blocks, in blocks, R, S, in lanes, lanes), zero-filled."""
    w = dense_groups(conv, weight, blocks.groups)
    k, c, r, s = w.shape
    pad_in = blocks.in_blocks * blocks.in_lanes - c
    pad_out = blocks.all_out_blocks * blocks.lanes - k  # only without groups: merged groups fill their blocks
    w = np.pad(w, ((0, pad_out), (0, pad_in), (0, 0), (0, 0)))
    w = w.reshape(blocks.all_out_blocks, blocks.lanes, blocks.in_blocks, blocks.in_lanes, r, s)
    return np.ascontiguousarray(w.transpose(0, 2, 4, 5, 3, 1))


def divisors(number: int, limit: int) -> tuple[int, ...]:
    """The divisors of `number` up to `limit`, ascending."""
    return tuple(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def tile_sizes(extent: int, limit: int, waste: float = 0.13) -> tuple[int, ...]:
    """Tile lengths up to `limit` that cover `extent` with at most `waste` of it computed in vain, divisors included."""
    return tuple(
        t
        for t in range(1, min(extent, limit) + 1)
        if extent % t == 0 or (-(-extent // t) * t - extent) <= waste * extent
    )
