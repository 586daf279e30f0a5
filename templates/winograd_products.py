"""The tiling of the matrix products of a Winograd convolution (the stage "mm"), and the prefetch of their weights.

Start at `tile_products`. CPU and OpenCL templates share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from templates.rewrite import CACHE_LINE_FLOATS, Fetch, mark, shared_out, wrap_marked_loop


@dataclass(frozen=True)
class ProductTile:
    """The register tile of "mm", which has `ob` output blocks by `tiles` tiles. `blocks_outer` says that the loop over
    output blocks is outside of the loop over tiles."""

    ob: int
    tiles: int
    blocks_outer: bool


@dataclass(frozen=True)
class ProductLoops:
    """The loops that "mm" is split into.

    `products` are the two loops over the matrix products. `tiles` runs over the tiles outside of the register tile,
    `blocks` over the input blocks, and `unrolled` over the input channels that are to be unrolled. `register_tile` has
    the loops of the register tile from the outside in, lanes last. `write` is the stage that writes its sums.
    """

    products: tuple[Any, Any]
    tiles: Any
    blocks: Any
    unrolled: Any
    register_tile: tuple[Any, Any, Any]
    write: Any


def tile_products(sch: Schedule, register: ProductTile, *, ui: int, tiles_first: bool) -> ProductLoops:
    """Split "mm" into register tiles, with `ui` input channels to be unrolled.

    Sums are kept in registers and are written when a register tile is done. The loop over input blocks is marked for
    `prefetch_products`.
    """
    mm = sch.get_sblock("mm")
    e, q, o, t, v, ib, ii = sch.get_loops(mm)[-7:]
    oo, oi = sch.split(o, [None, register.ob])
    to, ti = sch.split(t, [None, register.tiles])
    io, iu = sch.split(ii, [None, ui])
    middle = (oo, to) if register.blocks_outer else (to, oo)
    tile = (ti, oi, v) if tiles_first else (oi, ti, v)
    sch.reorder(e, q, *middle, ib, io, iu, *tile)
    mark(sch, ib)
    write = sch.cache_write(mm, 0, "local")
    sch.reverse_compute_at(write, middle[-1], preserve_unit_loops=True)
    return ProductLoops((e, q), to, ib, iu, tile, write)


def prefetch_products(
    func: tirx.PrimFunc, lanes: int, register: ProductTile, *, at_once: int, fetch: Fetch
) -> tirx.PrimFunc:
    """Prefetch the next weights while those of a register tile's output blocks are reused over register tiles.

    The weights are reused over `at_once` tiles, and each register tile fetches an equal share of the next weights.
    These are the weights of the next output blocks if the loop over them is outside, else those of the same output
    blocks in the next matrix product.
    """
    weight, ob, tiles, blocks_outer = func.params[1], register.ob, register.tiles, register.blocks_outer
    step_q, step_o = (0, ob) if blocks_outer else (1, 0)
    sweeps = -(-at_once // tiles)

    def fetching(loop: Any, index: Sequence[Any]) -> Any:
        e, q, o, tile, _, ib = index[:6]
        fetches = []
        for i in range(ob):
            for line in shared_out(lanes * lanes // CACHE_LINE_FLOATS, sweeps, tile % at_once // tiles):
                lane = line * CACHE_LINE_FLOATS
                fetches.append(fetch(weight, [e, q + step_q, o + step_o + i, ib, lane // lanes, lane % lanes]))
        return tirx.SeqStmt([*fetches, loop.body])

    return wrap_marked_loop(func, "mm_update", fetching)
