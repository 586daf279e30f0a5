"""The least sum of many small cost tables, exactly, by variable elimination. Start at `minimise`.

Non-serial dynamic programming (Bertelè and Brioschi, 1972) as bucket elimination (Dechter, "Bucket elimination: a
unifying framework for reasoning", Artificial Intelligence 113, 1999). On a chain it is the Viterbi algorithm; a graph
that is not a chain costs as much as its widest bucket. Where a bucket is too large it is split (mini-buckets: Dechter
and Rish, Journal of the ACM 50, 2003): what comes out then is a lower bound, and a solution that may be above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

LARGEST = 1 << 22  # entries of a bucket: 32 MiB


@dataclass(frozen=True, eq=False)
class Table:
    """Costs by the states of some variables, in that order of the axes; infinity forbids."""

    variables: tuple[int, ...]
    costs: np.ndarray

    def at(self, states: Sequence[int]) -> float:
        return float(self.costs[tuple(states[v] for v in self.variables)])


@dataclass(frozen=True)
class Solution:
    """`states`: of every variable; `cost`: the sum of all tables there, infinity if everything is forbidden; `bound`:
    no states cost less, equal to `cost` where the solution is exact; `width`: of the largest bucket, its variables
    less one (1: a tree)."""

    states: tuple[int, ...]
    cost: float
    bound: float
    width: int

    @property
    def exact(self) -> bool:
        return self.bound == self.cost


def minimise(sizes: Sequence[int], tables: Sequence[Table], largest: int = LARGEST) -> Solution:
    """The states, one of `sizes[v]` for each variable v, with the least sum of all tables. Deterministic.

    No bucket has more than `largest` entries; a table that is larger by itself is an exception (ValueError).
    """
    for table in tables:
        if table.costs.shape != tuple(sizes[v] for v in table.variables) or table.costs.size > largest:
            raise ValueError(f"a table of {table.variables} has the shape {table.costs.shape}")
    elimination = _Elimination(sizes, tables, largest)
    for _ in sizes:
        elimination.step()
    states = elimination.decoded()
    if elimination.split:
        states = _descended(states, sizes, tables)
    cost = sum(table.at(states) for table in tables)
    return Solution(tuple(states), cost, elimination.bound if elimination.split else cost, elimination.width)


class _Elimination:
    """`bound`: the part of the sum that no variable is left in; `split`: whether a bucket was too large."""

    def __init__(self, sizes: Sequence[int], tables: Sequence[Table], largest: int) -> None:
        self.bound = 0.0
        self.split = False
        self.width = 0
        self._sizes, self._largest = sizes, largest
        self._held: dict[int, list[Table]] = {v: [] for v in range(len(sizes))}  # by every variable not yet eliminated
        self._buckets: list[tuple[int, list[Table]]] = []
        self._weights: dict[int, int] = {}
        for table in tables:
            self._put(table)
        self._weigh(range(len(sizes)))

    def step(self) -> None:
        """Eliminate the variable whose bucket is smallest."""
        variable = min(self._weights, key=lambda v: (self._weights[v], v))
        del self._weights[variable]
        mine = self._held.pop(variable)
        for table in mine:
            for other in table.variables:
                if other != variable:
                    self._held[other] = [t for t in self._held[other] if t is not table]
        groups = self._grouped(mine)
        self.split |= len(groups) > 1
        joined = [self._joined(variable, group) for group in groups]
        self._buckets.append((variable, joined))
        for table in joined:
            self.width = max(self.width, len(table.variables) - 1)
            self._put(Table(table.variables[1:], table.costs.min(axis=0)))
        self._weigh({v for table in joined for v in table.variables[1:]})

    def decoded(self) -> list[int]:
        """The states that every bucket had its least cost at, the last eliminated first."""
        states = [0] * len(self._sizes)
        for variable, tables in reversed(self._buckets):
            states[variable] = int(np.argmin(np.sum([_row(t, variable, states) for t in tables], axis=0)))
        return states

    def _put(self, table: Table) -> None:
        if not table.variables:
            self.bound += float(table.costs)
        for variable in table.variables:
            self._held[variable].append(table)

    def _weigh(self, variables: Sequence[int] | set[int] | range) -> None:
        for v in variables:
            near = {v}.union(*(t.variables for t in self._held[v]))
            self._weights[v] = prod(self._sizes[n] for n in near)

    def _grouped(self, tables: Sequence[Table]) -> list[list[Table]]:
        """All in one group if the join is small enough, else the largest first, each to the first where it fits."""
        groups: list[list[Table]] = []
        scopes: list[set[int]] = []
        for table in sorted(tables, key=lambda t: -t.costs.size):
            for group, scope in zip(groups, scopes, strict=True):
                if prod(self._sizes[v] for v in scope.union(table.variables)) <= self._largest:
                    group.append(table)
                    scope.update(table.variables)
                    break
            else:
                groups.append([table])
                scopes.append(set(table.variables))
        return groups or [[]]

    def _joined(self, variable: int, tables: Sequence[Table]) -> Table:
        """Their sum, with the variable's axis first."""
        others = sorted({v for t in tables for v in t.variables} - {variable})
        scope = (variable, *others)
        axis = {v: i for i, v in enumerate(scope)}
        total = np.zeros([self._sizes[v] for v in scope])
        for table in tables:
            order = sorted(range(len(table.variables)), key=lambda i: axis[table.variables[i]])
            shape = [1] * len(scope)
            for v in table.variables:
                shape[axis[v]] = self._sizes[v]
            total += table.costs.transpose(order).reshape(shape)
        return Table(scope, total)


def _row(table: Table, variable: int, states: Sequence[int]) -> np.ndarray:
    """The costs by the state of one of its variables, the others as they are."""
    index = tuple(slice(None) if v == variable else states[v] for v in table.variables)
    row: np.ndarray = table.costs[index]
    return row


def _descended(states: list[int], sizes: Sequence[int], tables: Sequence[Table]) -> list[int]:
    """Variable by variable set to the best state that the others leave, until none changes."""
    held: list[list[Table]] = [[] for _ in sizes]
    for table in tables:
        for v in table.variables:
            held[v].append(table)
    changed = True
    while changed:
        changed = False
        for v in range(len(sizes)):
            costs = np.sum([_row(t, v, states) for t in held[v]], axis=0) if held[v] else np.zeros(sizes[v])
            best = int(np.argmin(costs))
            if costs[best] < costs[states[v]]:
                states[v], changed = best, True
    return states
