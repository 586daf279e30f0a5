"""Pieces that the CPU templates share. Those that GPU templates use too are in `templates.stages`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvm.s_tir import Schedule

from templates.space import Values
from templates.stages import unroll_tile
from tuning_db.record import Config

PARALLEL_VALUES = 4096  # fewer are computed in about the microsecond that it takes to begin in parallel
EVEN = 1.15  # the most that threads with nearly the same work wait: see `waiting`
PARALLEL_CHUNKS = 32  # this many keep the cores of an edge device evenly busy


def pad_at_root(sch: Schedule, block: str) -> None:
    """Schedule a padding stage at the root: parallel over batch, channel blocks and rows, vectorised over lanes."""
    pad = sch.get_sblock(block)
    loops = sch.get_loops(pad)
    sch.vectorize(loops[-1])
    sch.parallel(sch.fuse(*loops[:3]))


def convert_in_registers(sch: Schedule, pad: Any, values: Any, intrinsic: str | None) -> None:
    """Convert the values of the stage "edges" that the innermost loop `values` of the stage `pad` reads all at once, by
    an intrinsic."""
    edges = sch.get_sblock("edges")
    sch.compute_at(edges, sch.get_loops(pad)[-2], preserve_unit_loops=True)
    sch.set_scope(edges, 0, "local")
    sch.vectorize(sch.get_loops(edges)[-1])
    sch.tensorize(values, intrinsic)


def widen_parts(sch: Schedule, sums: Any, step: Any, *, tile: int) -> Any:
    """Compute the parts of a register tile's sums (stage "part", in halves) in registers, one after the other, and add
    them to the float32 sums of the stage `sums`. `step` is the loop over the parts, inside of which are the `tile`
    loops of the register tile. Return the stage "part"."""
    part = sch.get_sblock("part")
    sch.compute_at(part, step, preserve_unit_loops=True)
    sch.set_scope(part, 0, "local")
    unroll_tile(sch, sch.get_loops(sums)[-tile:])
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(sums, step))[-tile:])
    return part


def waiting(chunks: int, threads: int) -> float:
    """Return how many times as long threads take for parallel chunks of the same size as they would if all of them
    always had one."""
    return -(-chunks // threads) * threads / chunks


def even(chunks: int, threads: int) -> bool:
    """Return whether threads share out so many parallel chunks of the same size without much waiting."""
    return waiting(chunks, threads) <= EVEN


def even_first(seeds: Iterable[Values], chunks: Callable[[Values], int], threads: int) -> tuple[Values, ...]:
    """Return the seeds in their order, with those first that keep the threads evenly busy. `chunks` is that of
    `spread`."""
    return tuple(sorted(seeds, key=lambda knobs: not even(chunks(knobs), threads)))


def spread(config: Config, changes: Iterable[Values], chunks: Callable[[Values], int], threads: int) -> Config:
    """Return a config with that one of these changes of its knobs with which the threads wait least, the first of those
    that keep them evenly busy. It is returned unchanged if it keeps them busy by itself, or if no change helps.
    `chunks` counts the parallel chunks of a config."""

    def cost(knobs: Values) -> float:
        return max(EVEN, waiting(chunks(knobs), threads))

    found = min((config.knobs, *({**config.knobs, **change} for change in changes)), key=cost)
    return config if found is config.knobs else Config(config.template, found)
