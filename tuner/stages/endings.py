"""The stages that a set of operators can end with. Start at `endings`.

An ending is a subset that nothing outside of it reads from. Its groups are its connected parts: within the set they
are endings too, and no two of them touch. So groups are enumerated first, then the ways of choosing some that are
disjoint; a limit on either is a limit on the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.stages.operators import OperatorGraph, numbers


@dataclass(frozen=True)
class Limits:
    """How many groups a stage may have, and how many operators a group; None: any number. Where chains of operators are
    scheduled as one, each counts as one, unless they are given sizes."""

    groups: int | None = None
    operators: int | None = None

    def __str__(self) -> str:
        return f"at most {self.groups or 'any number of'} groups of {self.operators or 'any number of'} operators"


class TooLarge(Exception):
    """There are more sets than were to be looked at."""


@dataclass
class Cut:
    """What limits have cut off: how often a group would have grown, and how often a stage would have got another
    group."""

    operators: int = 0
    groups: int = 0


@dataclass
class Work:
    """How many sets may still be looked at; None: any number."""

    left: int | None = None

    def one(self) -> None:
        """Raises TooLarge where none may."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise TooLarge


def endings(
    graph: OperatorGraph, members: int, limits: Limits, cut: Cut, work: Work, sizes: Sequence[int] | None = None
) -> Iterator[tuple[int, ...]]:
    """Every ending of a set of operators within limits, each once, as its groups. `sizes`: as how many each of them
    counts (default: one). Raises TooLarge."""
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
    """The connected endings of a set: endings grow by operators in descending order, so that each is made once."""
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
