"""Pieces that every CPU template shares; what GPU templates use too is in `templates.stages`."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from templates.stages import unroll_tile

# Input blocks whose weights, for a register tile's output blocks, a first-level cache may hold.
MAX_CHUNK = 16


def pad_at_root(sch: Schedule, block: str) -> None:
    """Schedule a padding stage of its own: parallel over batch and channel blocks, vectorised over lanes."""
    pad = sch.get_sblock(block)
    loops = sch.get_loops(pad)
    sch.vectorize(loops[-1])
    sch.parallel(sch.fuse(*loops[:3]))


def add_chunks(sch: Schedule, sums: Any, part: str, step: Any, tile: Any) -> Any:
    """Make a chunk's sums (stage `part`) in registers inside the loop over register tiles, `tile`, and add them to
    `sums`, which stay in the first-level cache while all tiles use the chunk's weights. Returns the block `part`."""
    block = sch.get_sblock(part)
    sch.compute_at(block, tile, preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    added = sch.get_loops(sums)
    unroll_tile(sch, added[[sch.get(loop).loop_var for loop in added].index(sch.get(tile).loop_var) + 1 :])
    sch.vectorize(sch.get_loops(sch.decompose_reduction(sums, step))[-1])
    return block
