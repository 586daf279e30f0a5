"""Decide where every value of a program lies when it runs without TVM. Start at `laid_out`.

Inputs and outputs are on the host (see `on_host`). Values of a CPU lie in an arena of the host, or where the caller
wants them. Values of another device lie in buffers of that device, which those that are not needed at the same time
share. (Parts of one large buffer could take less, but each driver has an alignment of its own for them.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

import numpy as np

from tuner.export.arena import Block, aligned, most_at_once, planned, shared
from tuner.graph import COPY, KernelCall, Program, Value, Workspace

HOST = "cpu"


class Place(Enum):
    """The memory that holds a value: the arena, the weights' or the caller's memory, or a buffer of a device."""

    ARENA = 0
    WEIGHTS = 1
    INPUT = 2
    OUTPUT = 3
    DEVICE = 4


@dataclass(frozen=True)
class Held:
    """Where a value lies. `offset` counts bytes from the beginning of the arena or of the weights. Inputs and outputs
    have an offset in the arena too, where their values lie if the caller's memory is not aligned. `index` is that of
    the input, output or buffer, or else 0."""

    place: Place
    offset: int
    index: int = 0


@dataclass(frozen=True)
class Buffer:
    """A buffer of a device that has `size` bytes. A constant has those of the weights from `offset` on."""

    offset: int
    size: int
    constant: bool


@dataclass(frozen=True)
class DeviceLayout:
    """Says which buffers a device has. `scratch` has those that each call's kernels use for themselves, by call. `size`
    is that of all buffers but constants."""

    buffers: tuple[Buffer, ...] = ()
    scratch: tuple[tuple[int, ...], ...] = ()
    size: int = 0


@dataclass(frozen=True)
class Layout:
    """The places of a program's values, by value, and of the workspaces of the host's calls, by call, in bytes.

    `arena` is the size of the memory that an inference needs besides the `part` bytes of each thread, `least` the most
    of it that is needed at one time. `weights` is the size of all constants.
    """

    values: tuple[Held, ...]
    scratch: tuple[int, ...]
    part: int
    arena: int
    least: int
    weights: int
    device: DeviceLayout


def bytes_of(value: Value) -> int:
    """Return how many bytes a value takes."""
    return prod(value.shape) * np.dtype(value.dtype).itemsize


def on_host(program: Program) -> Program:
    """Return the program with its inputs and outputs on the host: they are copied from and to other devices."""
    devices = program.devices if HOST in program.devices else (*program.devices, HOST)
    host, values, before, after = devices.index(HOST), list(program.values), list[KernelCall](), list[KernelCall]()

    def here(i: int) -> int:
        """Return the value of the host that holds what value `i` does."""
        if values[i].device == host:
            return i
        values.append(replace(values[i], memory=len(values), device=host))
        return len(values) - 1

    inputs = [here(i) for i in program.inputs]
    outputs = [here(o) for o in program.outputs]
    before += [KernelCall(COPY, (h, i)) for h, i in zip(inputs, program.inputs, strict=True) if h != i]
    after += [KernelCall(COPY, (o, h)) for h, o in zip(outputs, program.outputs, strict=True) if h != o]
    return replace(
        program,
        values=tuple(values),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        calls=(*before, *program.calls, *after),
        devices=devices,
        stages=tuple(replace(stage, first=stage.first + len(before)) for stage in program.stages),
    )


def laid_out(program: Program, results: int) -> Layout:
    """Return the places of a program's values, in an arena that is as small as a greedy plan makes it. The program's
    ends are on the host; the caller gives memory for the first `results` of its outputs."""
    host = program.devices.index(HOST)
    steps = _steps(program)
    lives, (weights, size) = _lives(program, steps), _weight_offsets(program)
    there = {r: life for r, life in lives.items() if program.values[r].device != host}
    device, buffers = _on_device(program, steps, there, weights)
    roots = [root for root in lives if root not in weights and program.values[root].device == host]
    spaces = [program.workspaces.get(call.function, Workspace()) for call in program.calls]
    blocks = [Block(bytes_of(program.values[r]), *lives[r]) for r in roots]
    blocks += [Block(space.whole, *step) for step, space in zip(steps, spaces, strict=True)]
    arena = planned(blocks)
    offsets = dict(zip(roots, arena.offsets, strict=False))
    written = [program.values[output].memory for output in program.outputs[:results]]

    def held(root: int) -> Held:
        if root in buffers:
            return Held(Place.DEVICE, 0, buffers[root])
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
        values=tuple(held(value.memory) for value in program.values),
        scratch=arena.offsets[len(roots) :],
        part=aligned(part),
        arena=arena.size,
        least=most_at_once(blocks),
        weights=size,
        device=device,
    )


def _on_device(
    program: Program,
    steps: Sequence[tuple[int, int]],
    lives: Mapping[int, tuple[int, int]],
    weights: Mapping[int, int],
) -> tuple[DeviceLayout, dict[int, int]]:
    """Return the buffers of the device that is not the host, and the buffer of each of its values."""
    if not lives:
        return DeviceLayout(scratch=((),) * len(program.calls)), {}
    roots = [root for root in lives if root not in weights]
    constants = [root for root in lives if root in weights]
    sizes = [list(program.launches.get(call.function, {}).get("workspaces", ())) for call in program.calls]
    blocks = [Block(bytes_of(program.values[r]), *lives[r]) for r in roots]
    blocks += [Block(size, *step) for step, own in zip(steps, sizes, strict=True) for size in own]
    numbers = shared(blocks)
    buffers = [Buffer(0, 0, False)] * (max(numbers, default=-1) + 1)
    for block, number in zip(blocks, numbers, strict=True):
        buffers[number] = Buffer(0, max(1, block.size, buffers[number].size), False)
    size = sum(buffer.size for buffer in buffers)
    scratch, at = [], len(roots)
    for own in sizes:
        scratch.append(tuple(numbers[at : at + len(own)]))
        at += len(own)
    index = dict(zip(roots, numbers, strict=False)) | {c: len(buffers) + i for i, c in enumerate(constants)}
    buffers += [Buffer(weights[c], bytes_of(program.values[c]), True) for c in constants]
    return DeviceLayout(tuple(buffers), tuple(scratch), size), index


def _steps(program: Program) -> list[tuple[int, int]]:
    """Return when each call runs: itself alone, or at the same time as all calls of its stage, from the first to the
    last."""
    steps = [(at, at) for at in range(len(program.calls))]
    for stage in program.stages:
        for at in stage.calls:
            steps[at] = stage.calls[0], stage.calls[-1]
    return steps


def _lives(program: Program, steps: Sequence[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return the first and last call at which each value that has memory of its own is needed. A device computes its
    calls and stages in order, so that this holds for values that are not on the host, too."""
    end = len(program.calls)
    lives = dict.fromkeys(program.inputs, (0, 0))
    for (first, last), call in zip(steps, program.calls, strict=True):
        for operand in call.operands:
            root = program.values[operand].memory
            lives[root] = lives.get(root, (first, last))[0], last
    for output in program.outputs:
        root = program.values[output].memory
        lives[root] = lives.get(root, (0, 0))[0], end
    return lives


def _weight_offsets(program: Program) -> tuple[dict[int, int], int]:
    """Return where each constant lies among the weights, and the size of all."""
    offsets, at = {}, 0
    for constant in program.constants:
        offsets[constant] = at
        at += aligned(bytes_of(program.values[constant]))
    return offsets, at


def kernels_of(program: Program, device: str) -> Sequence[str]:
    """Return the functions that a kind of device computes, each once."""
    index = program.devices.index(device)
    called = [c.function for c in program.calls if program.values[c.operands[-1]].device == index]
    return list(dict.fromkeys(name for name in called if name != COPY))
