"""The order in which register tiles of a matrix product are worth trying. Start at `Product.tiles`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_LATENCY = 8  # multiply-adds that have to be under way at a time, as each takes four cycles and two begin in one
_LOAD = 0.1  # of a multiply-add's time, for a load beside which there are enough multiply-adds
_NEAR_BYTES = 1 << 14  # of a tile of columns that stays in the first cache with what else is there

_WIDTHS, _MAX_WIDTH = (1, 2, 3, 4, 6, 8), 13


def tile_widths(vectors: int) -> tuple[int, ...]:
    """Return how many vectors of columns a register tile may have: also what divides `vectors`."""
    widths = range(1, min(vectors, _MAX_WIDTH) + 1)
    return tuple(n for n in widths if n in _WIDTHS or vectors % n == 0)


@dataclass(frozen=True)
class Product:
    """A product of `rows` rows by `vectors` vectors of columns, whose sums have `depth` terms. It is computed in
    register tiles of at most `accumulators` vectors, each of `lanes` values."""

    rows: int
    vectors: int
    depth: int
    lanes: int
    accumulators: int

    def cost(self, tile: tuple[int, int]) -> float:
        """Return how long the product takes with a register tile (rows, vectors), in multiply-adds of vectors. What
        tiles compute beyond the product is counted in."""
        height, width = tile
        sums, loads = height * width, height + width
        far = width if 4 * width * self.lanes * self.depth > _NEAR_BYTES else 0  # a load takes twice the time
        once = max(sums, loads, _LATENCY) + _LOAD * loads + far
        return -(-self.rows // height) * -(-self.vectors // width) * once * self.depth

    def tiles(self, heights: Iterable[int], widths: Iterable[int]) -> list[tuple[int, int]]:
        """Return the register tiles of these numbers of rows and vectors that fit, by their cost."""
        widths = list(widths)
        tiles = [(h, w) for h in heights for w in widths if h * w <= self.accumulators]
        return sorted(tiles, key=lambda tile: (self.cost(tile), tile))
