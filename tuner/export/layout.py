"""Decide where every value of a program lies when it runs without TVM. Start at `laid_out`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np

from tuner.export.arena import Block, aligned, most_at_once, planned
from tuner.graph import Program, Value, Workspace


class Place(Enum):
    """The memory that holds a value: the caller's, the weights' or the arena."""

    ARENA = 0
    WEIGHTS = 1
    INPUT = 2
    OUTPUT = 3


@dataclass(frozen=True)
class Held:
    """Where a value lies. `offset` counts bytes from the beginning of the arena or of the weights. Inputs and outputs
    have an offset in the arena too, where their values lie if the caller's memory is not aligned. `index` is that of
    the input or output, or else 0."""

    place: Place
    offset: int
    index: int = 0


@dataclass(frozen=True)
class Layout:
    """The places of a program's values, by value, and of its calls' workspaces, by call, in bytes.

    `arena` is the size of the memory that an inference needs besides the `part` bytes of each thread, `least` the most
    of it that is needed at one time. `weights` is the size of all constants.
    """

    values: tuple[Held, ...]
    scratch: tuple[int, ...]
    part: int
    arena: int
    least: int
    weights: int


def bytes_of(value: Value) -> int:
    """Return how many bytes a value takes."""
    return prod(value.shape) * np.dtype(value.dtype).itemsize


def laid_out(program: Program, results: int) -> Layout:
    """Return the places of a program's values, in an arena that is as small as a greedy plan makes it. The caller gives
    memory for the first `results` of the program's outputs."""
    none = Workspace()
    spaces = [program.workspaces.get(call.function, none) for call in program.calls]
    roots, lives = _lives(program)
    blocks = [Block(bytes_of(program.values[r]), *lives[r]) for r in roots]
    blocks += [Block(space.whole, at, at) for at, space in enumerate(spaces)]
    arena = planned(blocks)
    offsets = dict(zip(roots, arena.offsets, strict=False))
    weights, size = _weight_offsets(program)
    written = [program.values[output].memory for output in program.outputs[:results]]

    def held(root: int) -> Held:
        if root in weights:
            return Held(Place.WEIGHTS, weights[root])
        offset = offsets.get(root, 0)  # a value that nothing reads or writes needs no memory
        if root in program.inputs:
            return Held(Place.INPUT, offset, program.inputs.index(root))
        if root in written:
            return Held(Place.OUTPUT, offset, written.index(root))
        return Held(Place.ARENA, offset)

    part = max((space.part for space in spaces), default=0)
    return Layout(
        tuple(held(value.memory) for value in program.values),
        arena.offsets[len(roots) :],
        aligned(part),
        arena.size,
        most_at_once(blocks),
        size,
    )


def _lives(program: Program) -> tuple[Sequence[int], dict[int, tuple[int, int]]]:
    """Return the values that need memory of their own, and the first and last call at which each is needed."""
    end = len(program.calls)
    lives = dict.fromkeys(program.inputs, (0, 0))
    for at, call in enumerate(program.calls):
        for operand in call.operands:
            root = program.values[operand].memory
            lives[root] = lives.get(root, (at, at))[0], at
    for output in program.outputs:
        root = program.values[output].memory
        lives[root] = lives.get(root, (0, 0))[0], end
    roots = [root for root in lives if root not in program.constants]
    return roots, lives


def _weight_offsets(program: Program) -> tuple[dict[int, int], int]:
    """Return where each constant lies among the weights, and the size of all."""
    offsets, at = {}, 0
    for constant in program.constants:
        offsets[constant] = at
        at += aligned(bytes_of(program.values[constant]))
    return offsets, at
