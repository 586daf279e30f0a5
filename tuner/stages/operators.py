"""The graph that stages are searched on has operators as numbers, and sets of them as bits of an int. Start at
`OperatorGraph`.

It knows nothing of kernels: any directed acyclic graph will do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.errors import BadInput


@dataclass(frozen=True)
class StageOperator:
    """An operator that needs the results of the operators with the numbers `reads`. Operators with the same `merges`,
    if it is not None, may be computed as one."""

    name: str
    reads: tuple[int, ...] = ()
    merges: Hashable = None


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in an order in which they can be executed, so that each reads earlier ones.

    Raises BadInput, naming the operator, for one that reads a later one, as in a cycle (files with one are refused when
    they are loaded).
    """

    operators: tuple[StageOperator, ...]

    def __post_init__(self) -> None:
        for i, operator in enumerate(self.operators):
            late = next((r for r in operator.reads if not 0 <= r < i), None)
            if late is not None:
                raise BadInput(
                    f"operator {operator.name!r}: reads {late}, which does not come before it: sort the graph"
                )

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def all(self) -> int:
        """Return the set of all operators, with a bit for each."""
        return (1 << len(self.operators)) - 1

    @cached_property
    def predecessors(self) -> tuple[int, ...]:
        """Return, for every operator, the set of operators that it reads."""
        return tuple(as_set(operator.reads) for operator in self.operators)

    @cached_property
    def successors(self) -> tuple[int, ...]:
        """Return, for every operator, the set of operators that read it."""
        found = [0] * len(self.operators)
        for i, operator in enumerate(self.operators):
            for read in set(operator.reads):
                found[read] |= 1 << i
        return tuple(found)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Return, for every operator, the set of all that it depends on."""
        found: list[int] = []
        for before in self.predecessors:
            found.append(before)
            for i in numbers(before):
                found[-1] |= found[i]
        return tuple(found)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Return, for every operator, the set of all that depend on it."""
        found = list(self.successors)
        for i in reversed(range(len(found))):
            for j in numbers(self.successors[i]):
                found[i] |= found[j]
        return tuple(found)

    def components(self, members: int) -> tuple[int, ...]:
        """Return the parts of a set that no edge connects, ordered by their first members."""
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


def as_set(members: Sequence[int]) -> int:
    """Return numbers as a set of bits."""
    found = 0
    for i in members:
        found |= 1 << i
    return found


def numbers(members: int) -> Iterator[int]:
    """Yield the numbers in a set, in order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
