"""Holds all that algorithm 1 of the paper on inter-operator parallelism ("Accelerate DNN Inference by Inter-Operator
Parallelism", ICLR 2020 submission) examines for one graph: the sets of operators that are left to be scheduled, and the
endings of each. Start at `Lattice.of`; `solve` is the dynamic program.

The sets and endings do not depend on costs, so they are enumerated once, however often costs are corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tuner.stages.endings import Cut, Limits, Work, endings
from tuner.stages.operators import OperatorGraph, numbers
from tuner.stages.schedule import Stage, can_merge


@dataclass(eq=False)
class Lattice:
    """The sets of operators that may be left, with their endings and the stages of these.

    - `stages` holds every possible stage.
    - `endings` holds, for every ending, the index of its stage and that of its merged stage (the same if there is
      none).
    - Sets are numbered, smaller ones first. The i-th has the rows from `starts[i]` to `starts[i + 1]`. A row has the
      number of the set that is left after one more ending in `before`, and that ending in `last`.
    - `levels` holds the number of the first set of each size, except the smallest.
    """

    stages: list[Stage] = field(default_factory=list)
    endings: list[tuple[int, int]] = field(default_factory=list)
    ways: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # `endings` as an array
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    before: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    levels: list[int] = field(default_factory=list)
    cut: Cut = field(default_factory=Cut)

    @property
    def transitions(self) -> int:
        return len(self.last)

    @classmethod
    def of(
        cls, graph: OperatorGraph, limits: Limits, most: int | None = None, sizes: Sequence[int] | None = None
    ) -> Lattice:
        """Enumerate the sets and endings of a graph. `sizes` says as how many operators each one counts (default: one).
        Raises TooLarge where more than `most` sets would have to be examined."""
        found = cls()
        known: dict[tuple[int, ...], int] = {}
        sets: dict[int, list[tuple[int, int]]] = {0: []}
        waiting, work = [graph.all], Work(most)
        while waiting:
            left = waiting.pop()
            if left in sets:
                continue
            sets[left] = []
            for groups in endings(graph, left, limits, found.cut, work, sizes):
                taken = sum(groups)
                key = tuple(sorted(groups))
                if key not in known:
                    known[key] = found._add(graph, key)
                sets[left].append((left & ~taken, known[key]))
                waiting.append(left & ~taken)
        found._arrange(sets)
        return found

    def _add(self, graph: OperatorGraph, groups: Sequence[int]) -> int:
        """Add the stages of an ending, with its longest group first, and return the ending's index."""
        lists = sorted((tuple(numbers(group)) for group in groups), key=lambda g: (-len(g), g))
        stage = Stage(tuple(lists))
        ways = [stage, Stage(stage.groups, True)] if can_merge(graph, stage) else [stage]
        self.endings.append((len(self.stages), len(self.stages) + len(ways) - 1))
        self.stages += ways
        return len(self.endings) - 1

    def _arrange(self, sets: dict[int, list[tuple[int, int]]]) -> None:
        order = sorted(sets, key=int.bit_count)
        place = {left: i for i, left in enumerate(order)}
        sizes = [left.bit_count() for left in order]
        self.levels = [i for i in range(1, len(order)) if sizes[i] != sizes[i - 1]]
        self.ways = np.array(self.endings, np.int64).reshape(-1, 2)
        self.starts = np.cumsum([0, *(len(sets[left]) for left in order)])
        self.before = np.array([place[b] for left in order for b, _ in sets[left]], np.int64)
        self.last = np.array([e for left in order for _, e in sets[left]], np.int64)

    def solve(self, seconds: np.ndarray) -> tuple[float, list[int]]:
        """Return the least sum of seconds, and the indices of the stages that reach it. `seconds` holds those of every
        stage."""
        costs = seconds[self.ways].min(axis=1)
        count = len(self.starts) - 1
        best = np.zeros(count)
        for first, end in pairwise([*self.levels, count]):
            rows = slice(self.starts[first], self.starts[end])
            sums = best[self.before[rows]] + costs[self.last[rows]]
            best[first:end] = np.minimum.reduceat(sums, self.starts[first:end] - self.starts[first])
        found, at = [], count - 1
        while at:
            rows = slice(self.starts[at], self.starts[at + 1])
            row = int(self.starts[at] + (best[self.before[rows]] + costs[self.last[rows]]).argmin())
            found.append(min(self.endings[self.last[row]], key=seconds.__getitem__))
            at = int(self.before[row])
        return float(best[-1]), found[::-1]
