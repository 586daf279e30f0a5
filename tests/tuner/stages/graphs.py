"""Graphs to schedule, and what their stages cost, drawn or made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random

from hypothesis import strategies as st

from tuner.stages import OperatorGraph, Stage, StageOperator


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> OperatorGraph:
    """Any small graph; some of its operators may be merged."""
    count = draw(st.integers(1, most))
    operators = []
    for i in range(count):
        reads = tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else ()
        operators.append(StageOperator(f"operator {i}", reads, draw(st.sampled_from([None, None, "one", "two"]))))
    return OperatorGraph(tuple(operators))


class Drawn:
    """Costs that say nothing of each other: numbers drawn for every stage. Some stages cannot be."""

    def __init__(self, seed: int, optimistic: bool = False) -> None:
        self.seed, self.optimistic = seed, optimistic
        self.asked: list[Stage] = []

    def _of(self, stage: Stage) -> float:
        random = Random(f"{self.seed} {stage.text()}")
        if len(stage.groups) > 1 and random.random() < 0.1:
            return math.inf
        return random.uniform(0.2, 1.0) * stage.members.bit_count()

    def seconds(self, stage: Stage) -> float:
        self.asked.append(stage)
        return self._of(stage)

    def estimate(self, stage: Stage) -> float | None:
        if not self.optimistic:
            return None
        return min(self._of(stage), 10.0) * Random(f"{self.seed} estimate {stage.text()}").uniform(0.5, 1.0)

    def correction(self) -> float:
        return 1.0

    def known(self, stage: Stage) -> bool:
        return False

    def is_rough(self, stage: Stage) -> bool:
        return False

    def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
        """Nothing to gain."""


def connected(graph: OperatorGraph, members: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """The connected parts of some operators, by merging neighbours until nothing changes."""
    parts = [{i} for i in members]
    changed = True
    while changed:
        changed = False
        for one, other in combinations(parts, 2):
            if any(a in graph.operators[b].reads or b in graph.operators[a].reads for a in one for b in other):
                one |= other
                parts.remove(other)
                changed = True
                break
    return tuple(sorted((tuple(sorted(p)) for p in parts), key=lambda g: (-len(g), g)))


def cheapest(graph: OperatorGraph, costs: Drawn) -> float:
    """The least cost of any schedule, by trying all."""

    def least(done: frozenset[int]) -> float:
        left = [i for i in range(len(graph)) if i not in done]
        best = 0.0 if not left else math.inf
        for size in range(1, len(left) + 1):
            for some in combinations(left, size):
                taken = done | frozenset(some)
                if all(r in taken for i in some for r in graph.operators[i].reads):
                    best = min(best, stage_cost(frozenset(some)) + least(taken))
        return best

    def stage_cost(members: frozenset[int]) -> float:
        groups = connected(graph, members)
        kinds = {graph.operators[i].merges for i in members}
        found = costs.seconds(Stage(groups))
        if all(len(g) == 1 for g in groups) and len(groups) > 1 and len(kinds) == 1 and None not in kinds:
            found = min(found, costs.seconds(Stage(groups, True)))
        return found

    return least(frozenset())


def branches(*lengths: int) -> OperatorGraph:
    """One operator, branches of so many each, one that joins them."""
    operators, ends = [StageOperator("first")], []
    for branch, length in enumerate(lengths):
        numbers = [0, *range(len(operators), len(operators) + length)]
        operators += [StageOperator(f"{branch}.{i}", (before,)) for i, (before, _) in enumerate(pairwise(numbers))]
        ends.append(numbers[-1])
    return OperatorGraph((*operators, StageOperator("last", tuple(ends))))
