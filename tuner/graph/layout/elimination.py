"""Minimise the sum of many small cost tables exactly, by variable elimination. Start at `minimise`.

The method is non-serial dynamic programming (Bertelè and Brioschi, 1972) in the form of bucket elimination (Dechter,
"Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113, 1999). On a chain it is the
Viterbi algorithm. On any other graph it costs as much as its widest bucket. A bucket that is too large is split
(mini-buckets: Dechter and Rish, Journal of the ACM 50, 2003). The result is then a lower bound, and a solution whose
cost may lie above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

LARGEST = 1 << 22  # entries of a bucket: 32 MiB


@dataclass(frozen=True, eq=False)
class Table:
    """A table that gives the cost of every combination of the states of some variables. Its axes are in the order of
    `variables`. A cost of infinity forbids a combination."""

    variables: tuple[int, ...]
    costs: np.ndarray

    def at(self, states: Sequence[int]) -> float:
        return float(self.costs[tuple(states[v] for v in self.variables)])


@dataclass(frozen=True)
class Solution:
    """The states that `minimise` has found.

    `states` has the state of every variable. `cost` is the sum of all tables in these states, and infinity if every
    combination is forbidden. No states cost less than `bound`, which equals `cost` if the solution is exact. `width` is
    the number of variables in the largest bucket less one (1 for a tree).
    """

    states: tuple[int, ...]
    cost: float
    bound: float
    width: int

    @property
    def exact(self) -> bool:
        return self.bound == self.cost


def minimise(sizes: Sequence[int], tables: Sequence[Table], largest: int = LARGEST) -> Solution:
    """Find the states, one of `sizes[v]` for each variable v, with the least sum of all tables. The result is
    deterministic.

    No bucket has more than `largest` entries. Raises ValueError if a single table is larger, or if its shape does not
    fit `sizes`.
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
    """Removes one variable after the other. `bound` is the part of the sum that depends on no remaining variable.
    `split` says whether a bucket was too large and had to be split."""

    def __init__(self, sizes: Sequence[int], tables: Sequence[Table], largest: int) -> None:
        self.bound = 0.0
        self.split = False
        self.width = 0
        self._sizes, self._largest = sizes, largest
        self._held: dict[int, list[Table]] = {v: [] for v in range(len(sizes))}  # of each remaining variable
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
        """Return the state of every variable. From the last eliminated to the first, each variable gets the state in
        which its bucket has the least cost."""
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
        """Group tables so that the join of a group is small enough. The largest tables come first, and each goes to the
        first group where it fits. If the join of all is small enough, there is one group."""
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
        """Return the sum of some tables as one table, whose first axis is that of `variable`."""
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
    """Return a table's costs for each state of `variable`, with its other variables in their `states`."""
    index = tuple(slice(None) if v == variable else states[v] for v in table.variables)
    row: np.ndarray = table.costs[index]
    return row


def _descended(states: list[int], sizes: Sequence[int], tables: Sequence[Table]) -> list[int]:
    """Improve the states by coordinate descent: set one variable after the other to its best state, with all others
    fixed, until none changes."""
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
