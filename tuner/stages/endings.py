"""Enumerates the stages that a set of operators can end with. Start at `endings`.

An ending is a subset that nothing else in the set reads from. Its groups are its connected parts. Each of them is an
ending of the set too, and no two of them touch. So groups are enumerated first, then the choices of disjoint groups; a
limit on either limits the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.stages.operators import OperatorGraph, numbers


@dataclass(frozen=True)
class Limits:
    """Limits the number of groups in a stage and of operators in a group; None means any number.

    Where chains of operators are scheduled as one, each counts as one operator, unless sizes are given.
    """

    groups: int | None = None
    operators: int | None = None

    def __str__(self) -> str:
        return f"at most {self.groups or 'any number of'} groups of {self.operators or 'any number of'} operators"


class TooLarge(Exception):
    """Raised where there are more sets than may be examined."""


@dataclass
class Cut:
    """Counts what limits have cut off: how often a group would have grown, and how often a stage would have got another
    group."""

    operators: int = 0
    groups: int = 0


@dataclass
class Work:
    """Counts how many sets may still be examined; None means any number."""

    left: int | None = None

    def one(self) -> None:
        """Count one set. Raises TooLarge where none is left."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise TooLarge


def endings(
    graph: OperatorGraph, members: int, limits: Limits, cut: Cut, work: Work, sizes: Sequence[int] | None = None
) -> Iterator[tuple[int, ...]]:
    """Yield every ending of a set of operators within limits once, as its groups. `sizes` says as how many operators
    each one counts (default: one). Raises TooLarge."""
    groups = list(_groups(graph, members, limits.operators, cut=cut, work=work, sizes=sizes or [1] * len(graph)))
    stack: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    while stack:
        start, taken, chosen = stack.pop()
        for i in range(start, len(groups)):
            if groups[i] & taken:
                continue
            if limits.groups is not None and len(chosen) == limits.groups:
                cut.groups += 1
                break
            work.one()
            more = (*chosen, groups[i])
            yield more
            stack.append((i + 1, taken | groups[i], more))


def _groups(
    graph: OperatorGraph, members: int, limit: int | None, *, cut: Cut, work: Work, sizes: Sequence[int]
) -> Iterator[int]:
    """Yield the connected endings of a set. Endings grow by operators in descending order, so that each is made only
    once."""
    successors = graph.successors
    stack = [(0, 0, members)]
    while stack:
        ending, size, below = stack.pop()
        work.one()
        for i in numbers(below):
            if successors[i] & members & ~ending:
                continue
            if limit is not None and size + sizes[i] > limit:
                cut.operators += 1
                if size == limit:
                    break
                continue
            grown = ending | 1 << i
            if len(graph.components(grown)) == 1:
                yield grown
            stack.append((grown, size + sizes[i], members & ((1 << i) - 1)))
