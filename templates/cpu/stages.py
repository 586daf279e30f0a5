"""Pieces that the CPU templates share. Those that GPU templates use too are in `templates.stages`."""

from __future__ import annotations

from tvm.s_tir import Schedule


def pad_at_root(sch: Schedule, block: str) -> None:
    """Schedule a padding stage at the root: parallel over batch, channel blocks and rows, vectorised over lanes."""
    pad = sch.get_sblock(block)
    loops = sch.get_loops(pad)
    sch.vectorize(loops[-1])
    sch.parallel(sch.fuse(*loops[:3]))
