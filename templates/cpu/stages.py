"""Pieces that every CPU template shares; what GPU templates use too is in `templates.stages`."""

from __future__ import annotations

from tvm.s_tir import Schedule


def pad_at_root(sch: Schedule, block: str) -> None:
    """Schedule a padding stage of its own: parallel over batch and channel blocks, vectorised over lanes."""
    pad = sch.get_sblock(block)
    loops = sch.get_loops(pad)
    sch.vectorize(loops[-1])
    sch.parallel(sch.fuse(*loops[:3]))
