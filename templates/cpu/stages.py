"""Pieces that the CPU templates share. Those that GPU templates use too are in `templates.stages`."""

from __future__ import annotations

from tvm.s_tir import Schedule

PARALLEL_VALUES = 4096  # fewer are computed in about the microsecond that it takes to begin in parallel
EVEN = 1.15  # the most that threads with nearly the same work wait: see `waiting`
PARALLEL_CHUNKS = 32  # this many keep the cores of an edge device evenly busy


def pad_at_root(sch: Schedule, block: str) -> None:
    """Schedule a padding stage at the root: parallel over batch, channel blocks and rows, vectorised over lanes."""
    pad = sch.get_sblock(block)
    loops = sch.get_loops(pad)
    sch.vectorize(loops[-1])
    sch.parallel(sch.fuse(*loops[:3]))


def waiting(chunks: int, threads: int) -> float:
    """Return how many times as long threads take for parallel chunks of the same size as they would if all of them
    always had one."""
    return -(-chunks // threads) * threads / chunks


def even(chunks: int, threads: int) -> bool:
    """Return whether threads share out so many parallel chunks of the same size without much waiting."""
    return waiting(chunks, threads) <= EVEN
