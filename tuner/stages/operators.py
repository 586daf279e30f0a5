"""The graph that stages are searched on: operators as numbers, sets of them as bits of an int. Start at
`OperatorGraph`.

It knows nothing of kernels: any directed acyclic graph will do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.errors import BadInput


@dataclass(frozen=True)
class Operator:
    """`reads`: the numbers of the operators whose results it needs. Operators with the same `merges`, if it is not
    None, may be computed as one. `effects`: it does more than to compute its results, so that its place is fixed."""

    name: str
    reads: tuple[int, ...] = ()
    merges: Hashable = None
    effects: bool = False


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in an order in which they can be executed: each reads earlier ones. `in_order` sorts others.

    Raises BadInput, naming the operator, for one that reads a later one or that has side effects.
    """

    operators: tuple[Operator, ...]

    def __post_init__(self) -> None:
        for i, operator in enumerate(self.operators):
            late = next((r for r in operator.reads if not 0 <= r < i), None)
            if late is not None:
                raise BadInput(
                    f"operator {operator.name!r}: reads {late}, which does not come before it: sort the graph"
                )
            if operator.effects:
                raise BadInput(f"operator {operator.name!r} has side effects: stages would change their order")

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def all(self) -> int:
        return (1 << len(self.operators)) - 1

    @cached_property
    def predecessors(self) -> tuple[int, ...]:
        """Of every operator, as a set."""
        return tuple(as_set(operator.reads) for operator in self.operators)

    @cached_property
    def successors(self) -> tuple[int, ...]:
        """Of every operator, as a set."""
        found = [0] * len(self.operators)
        for i, operator in enumerate(self.operators):
            for read in set(operator.reads):
                found[read] |= 1 << i
        return tuple(found)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Of every operator, all that it depends on."""
        found: list[int] = []
        for before in self.predecessors:
            found.append(before)
            for i in numbers(before):
                found[-1] |= found[i]
        return tuple(found)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Of every operator, all that depends on it."""
        found = list(self.successors)
        for i in reversed(range(len(found))):
            for j in numbers(self.successors[i]):
                found[i] |= found[j]
        return tuple(found)

    def components(self, members: int) -> tuple[int, ...]:
        """The parts of a set that no edge connects, by their first members."""
        found = []
        while members:
            part, border = 0, members & -members
            while border:
                part |= border
                reached = 0
                for i in numbers(border):
                    reached |= self.predecessors[i] | self.successors[i]
                border = reached & members & ~part
            found.append(part)
            members &= ~part
        return tuple(found)


def in_order(operators: Sequence[Operator]) -> tuple[OperatorGraph, tuple[int, ...]]:
    """Operators in any order as a graph, and the old number of each of its operators; of several that are ready the
    earliest comes first. Raises BadInput, naming its operators, if there is a cycle, or as `OperatorGraph` does."""
    order: list[int] = []
    place: dict[int, int] = {}
    while len(order) < len(operators):
        ready = (i for i, o in enumerate(operators) if i not in place and all(r in place for r in o.reads))
        found = next(ready, None)
        if found is None:
            cycle = _cycle(operators, place)
            raise BadInput(f"operators {' -> '.join(repr(operators[i].name) for i in cycle)} read each other: a cycle")
        place[found] = len(order)
        order.append(found)
    sorted_ = (operators[i] for i in order)
    return (
        OperatorGraph(tuple(Operator(o.name, tuple(place[r] for r in o.reads), o.merges, o.effects) for o in sorted_)),
        tuple(order),
    )


def _cycle(operators: Sequence[Operator], done: dict[int, int]) -> list[int]:
    """A cycle among what cannot be done, its first operator also last."""
    path = [next(i for i in range(len(operators)) if i not in done)]
    while True:
        before = next((r for r in operators[path[-1]].reads if r not in done), None)
        if before is None or not 0 <= before < len(operators):
            raise BadInput(f"operator {operators[path[-1]].name!r} reads an operator that is not there")
        if before in path:
            return [before, *reversed(path[path.index(before) :])]
        path.append(before)


def as_set(members: Sequence[int]) -> int:
    """Numbers as bits."""
    found = 0
    for i in members:
        found |= 1 << i
    return found


def numbers(members: int) -> Iterator[int]:
    """The numbers in a set, in order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
