"""The graph tuner chooses a device, layouts and a kernel for every operator of a network, all together. Start at
`plan`.

Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", section 3.2, choose layouts
by dynamic programming over measured kernels and transforms. They choose devices separately, by two passes. Here an
operator's states are (device, layouts, kernel). A value's copies and transforms are paid once, however many operators
read it. `elimination.minimise` finds the least sum, exactly as long as the graph is not too wide.

A value is made in its producer's form, which is a device and a layout. For readers on another device it is copied there
in the same layout, once per device. For readers that want another layout it is transformed where it is read, once per
form. `lowering.placed` and `lowering.emit` emit these moves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from templates.template import Layout
from tuner.graph.layout.elimination import LARGEST, Solution, Table, minimise


class Form(NamedTuple):
    """Says where and how a value is stored: the index of a device, and a layout."""

    device: int
    layout: Layout


@dataclass(frozen=True)
class State:
    """One of the alternatives in which an operator can be computed.

    `reads` has the form that it needs each of its operands in, and `makes` is the form of its result. `seconds` is the
    time that it takes, and `source` says where this time comes from. `kernel` names the kernel (a config's key, a
    library).

    A concatenation `saves` some of its seconds for each operand that nothing else reads, that is made in the form in
    which the concatenation reads it, and whose own state `fills`. A state that `fills` can write its result directly
    into the joined tensor.
    """

    reads: tuple[Form, ...]
    makes: Form
    seconds: float
    kernel: str = ""
    source: str = "measured"
    saves: tuple[float, ...] = ()
    fills: bool = False


@dataclass(frozen=True)
class Node:
    """An operator with the states that it can be computed in. A network's inputs and outputs are nodes too: an input
    reads nothing, and an output computes nothing. `operands` has, for each value that the operator reads, the index of
    the node that makes it.

    Raises ValueError if there is no state, or if a state does not fit the operands.
    """

    name: str
    operands: tuple[int, ...]
    states: tuple[State, ...]

    def __post_init__(self) -> None:
        if not self.states:
            raise ValueError(f"{self.name} can be computed nowhere")
        if any(len(s.reads) != len(self.operands) for s in self.states):
            raise ValueError(f"{self.name}: its states do not read its {len(self.operands)} operands")
        if any(s.saves and len(s.saves) != len(self.operands) for s in self.states):
            raise ValueError(f"{self.name}: its states do not save by its {len(self.operands)} operands")


@dataclass(frozen=True)
class Moving:
    """Gives the seconds that it takes to move the value of a node, or infinity if it cannot be moved.

    `copy(node, layout, source, target)` is for a copy from device to device. `transform(node, device, old, new)` is for
    a change of layout on one device.
    """

    copy: Callable[[int, Layout, int, int], float]
    transform: Callable[[int, int, Layout, Layout], float]


@dataclass(frozen=True)
class Move:
    """A copy (`to` is on another device, in the same layout) or a transform (on the same device) of a node's value."""

    node: int
    before: Form
    to: Form
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The states that are chosen for all nodes, and what they cost.

    `states` has the index of each node's state, and `computing` its seconds less what it saves. `seconds` is the sum of
    all operators and moves. No plan takes less than `bound`, which equals `seconds` if the plan is optimal. `width`
    says how far the graph is from a chain (1).
    """

    states: tuple[int, ...]
    computing: tuple[float, ...]
    moves: tuple[Move, ...]
    seconds: float
    bound: float
    width: int

    @property
    def optimal(self) -> bool:
        return self.seconds <= self.bound


def plan(nodes: Sequence[Node], moving: Moving, largest: int = LARGEST) -> Plan:
    """Return the plan that takes the fewest seconds. In `nodes`, operands come before the nodes that read them.
    `elimination.minimise` explains `largest`."""
    problem = _Problem(nodes, moving)
    found = minimise(problem.sizes, problem.tables, largest)
    return _planned(nodes, moving, found)


def moves_of(nodes: Sequence[Node], moving: Moving, states: Sequence[int]) -> tuple[Move, ...]:
    """Return the moves that are necessary if every node is in the state with the index in `states`."""
    found: dict[tuple[int, Form], Move] = {}
    for node, state in zip(nodes, states, strict=True):
        for operand, wanted in zip(node.operands, node.states[state].reads, strict=True):
            made = nodes[operand].states[states[operand]].makes
            here = Form(wanted.device, made.layout)
            if made.device != wanted.device and (operand, here) not in found:
                seconds = moving.copy(operand, made.layout, made.device, wanted.device)
                found[operand, here] = Move(operand, made, here, seconds)
            if here != wanted and (operand, wanted) not in found:
                seconds = moving.transform(operand, wanted.device, made.layout, wanted.layout)
                found[operand, wanted] = Move(operand, here, wanted, seconds)
    return tuple(found.values())


def seconds_of(nodes: Sequence[Node], moving: Moving, states: Sequence[int]) -> float:
    """Return the seconds of all operators and moves if every node is in the state with the index in `states`."""
    return sum(computing(nodes, states)) + sum(move.seconds for move in moves_of(nodes, moving, states))


def computing(nodes: Sequence[Node], states: Sequence[int]) -> tuple[float, ...]:
    """Return the seconds of every node, without moves, if every node is in the state with the index in `states`."""
    chosen = [node.states[state] for node, state in zip(nodes, states, strict=True)]
    readers = Counter(operand for node in nodes for operand in node.operands)
    found = []
    for node, state in zip(nodes, chosen, strict=True):
        saved = [_saved(chosen[o], state, place) for place, o in enumerate(node.operands) if readers[o] == 1]
        found.append(state.seconds - sum(saved))
    return tuple(found)


def _saved(made: State, reading: State, place: int) -> float:
    """Return the seconds that the state `reading` saves on its operand `place`, which is in the state `made` and has no
    other reader."""
    fitting = bool(reading.saves) and made.fills and made.makes == reading.reads[place]
    return reading.saves[place] if fitting else 0.0


def greedy(nodes: Sequence[Node], moving: Moving) -> tuple[int, ...]:
    """Choose the states one after another: each is the fastest, with the moves that it needs, after the states before
    it. This is the baseline that `plan` has to beat."""
    states: list[int] = []
    for i, node in enumerate(nodes):
        before = nodes[: i + 1]
        costs = [seconds_of(before, moving, [*states, s]) for s in range(len(node.states))]
        states.append(int(np.argmin(costs)))
    return tuple(states)


def plan_of(nodes: Sequence[Node], moving: Moving, states: Sequence[int], *, bound: float, width: int) -> Plan:
    """Return the plan that has the given states. No plan takes less than `bound`."""
    moves = moves_of(nodes, moving, states)
    parts = computing(nodes, states)
    seconds = sum(parts) + sum(move.seconds for move in moves)
    return Plan(tuple(states), parts, moves, seconds, min(bound, seconds), width)


def _planned(nodes: Sequence[Node], moving: Moving, found: Solution) -> Plan:
    return plan_of(
        nodes, moving, found.states[: len(nodes)], bound=math.inf if found.exact else found.bound, width=found.width
    )


class _Problem:
    """Writes a planning problem as tables for `minimise`.

    The first variables are the nodes' states. Further variables (0 or 1) say of every value with several readers
    whether it is on a device at all, and whether it is there in a form. So a move that several readers need is paid
    once.
    """

    def __init__(self, nodes: Sequence[Node], moving: Moving) -> None:
        self.sizes = [len(node.states) for node in nodes]
        self.tables = [Table((i,), np.array([s.seconds for s in n.states])) for i, n in enumerate(nodes)]
        self._nodes, self._moving = nodes, moving
        readers: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for i, node in enumerate(nodes):
            for place, operand in enumerate(node.operands):
                readers[operand].append((i, place))
        for value, reading in enumerate(readers):
            if len(reading) == 1:
                self._single(value, *reading[0])
            elif reading:
                self._shared(value, reading)

    def _single(self, value: int, reader: int, place: int) -> None:
        costs = np.array(
            [
                [
                    self._moved(value, made.makes, s.reads[place]) - _saved(made, s, place)
                    for s in self._nodes[reader].states
                ]
                for made in self._nodes[value].states
            ]
        )
        self._add((value, reader), costs)

    def _shared(self, value: int, reading: Sequence[tuple[int, int]]) -> None:
        made = [state.makes for state in self._nodes[value].states]
        wanted = {s.reads[place] for reader, place in reading for s in self._nodes[reader].states}
        held: dict[Form, int] = {}
        for device in sorted({form.device for form in wanted}):
            present = self._switch(value, [self._copied(value, m, device) for m in made])
            for form in sorted((f for f in wanted if f.device == device), key=lambda f: f.layout.block):
                held[form] = self._switch(value, [self._transformed(value, m.layout, form) for m in made])
                self._add((held[form], present), np.array([[0.0, 0.0], [math.inf, 0.0]]))
        for reader, place in reading:
            states = self._nodes[reader].states
            for form in {s.reads[place] for s in states}:
                forbidden = [[math.inf if s.reads[place] == form else 0.0, 0.0] for s in states]
                self._add((reader, held[form]), np.array(forbidden))

    def _switch(self, value: int, seconds: Sequence[float]) -> int:
        """Add a variable that is 0 or 1 and return its index. If it is 1, it costs the `seconds` that belong to the
        state in which the value is made."""
        self.sizes.append(2)
        self._add((value, len(self.sizes) - 1), np.array([[0.0, s] for s in seconds]))
        return len(self.sizes) - 1

    def _add(self, variables: tuple[int, ...], costs: np.ndarray) -> None:
        if costs.any():
            self.tables.append(Table(variables, costs))

    def _moved(self, value: int, made: Form, wanted: Form) -> float:
        return self._copied(value, made, wanted.device) + self._transformed(value, made.layout, wanted)

    def _copied(self, value: int, made: Form, device: int) -> float:
        return 0.0 if made.device == device else self._moving.copy(value, made.layout, made.device, device)

    def _transformed(self, value: int, layout: Layout, wanted: Form) -> float:
        if layout == wanted.layout:
            return 0.0
        return self._moving.transform(value, wanted.device, layout, wanted.layout)
