"""The order in which register tiles of a matrix product are worth trying. Start at `product_tiles`."""

from __future__ import annotations

from collections.abc import Iterable

_LATENCY = 8  # multiply-adds that have to be under way at a time, as each takes four cycles and two begin in one
_LOAD = 0.1  # of a multiply-add's time, for a load beside which there are enough multiply-adds
_SPARE = 4  # accumulators that the compiler is glad of


def product_tiles(
    rows: int, vectors: int, *, tile_rows: Iterable[int], tile_vectors: Iterable[int], accumulators: int
) -> list[tuple[int, int]]:
    """Return the register tiles, (rows, vectors), that fit into `accumulators`, the fastest first by a simple count.

    A product has `rows` rows by `vectors` vectors of columns. What tiles compute beyond these is counted in.
    """

    def cost(tile: tuple[int, int]) -> float:
        height, width = tile
        sums, loads = height * width, height + width
        spilled = max(0, sums - (accumulators - _SPARE))
        return -(-rows // height) * -(-vectors // width) * (max(sums, loads, _LATENCY) + _LOAD * loads + spilled / 2)

    widths = list(tile_vectors)
    tiles = [(height, width) for height in tile_rows for width in widths if height * width <= accumulators]
    return sorted(tiles, key=lambda tile: (cost(tile), tile))
