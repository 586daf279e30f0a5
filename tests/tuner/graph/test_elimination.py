"""Variable elimination against brute force, on random graphs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.graph.layout.elimination import Table, minimise


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Table]]:
    """Up to twelve variables, tables of one to three of them; every tenth state or so is forbidden."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    scopes = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tables = []
    for scope in draw(st.lists(scopes, max_size=18)):
        costs = rng.random([sizes[v] for v in scope])
        costs[rng.random(costs.shape) < 0.1] = math.inf
        tables.append(Table(tuple(scope), costs))
    return sizes, tables


def brute_force(sizes: list[int], tables: list[Table]) -> float:
    states = np.array(list(itertools.product(*map(range, sizes))))
    total = np.zeros(len(states))
    for table in tables:
        total += table.costs[tuple(states[:, v] for v in table.variables)]
    return float(total.min())


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_answer_is_that_of_brute_force(problem: tuple[list[int], list[Table]]) -> None:
    sizes, tables = problem
    found = minimise(sizes, tables)
    assert all(0 <= state < size for state, size in zip(found.states, sizes, strict=True))
    assert found.cost == sum(table.at(found.states) for table in tables)
    assert found.cost == pytest.approx(brute_force(sizes, tables))
    assert found.exact
    assert found.width < len(sizes)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_where_buckets_are_split_the_bound_holds(problem: tuple[list[int], list[Table]]) -> None:
    sizes, tables = problem
    found = minimise(sizes, tables, largest=27)
    best = brute_force(sizes, tables)
    assert found.bound <= best + 1e-9
    assert found.cost >= best - 1e-9
    assert found.width <= 3 * math.log2(3) or found.width < len(sizes)


def test_a_long_chain_has_width_one() -> None:
    rng = np.random.default_rng(0)
    tables = [Table((i, i + 1), rng.random((4, 4))) for i in range(999)]
    found = minimise([4] * 1000, tables)
    total = np.zeros(4)
    for table in tables:
        total = (total[:, None] + table.costs).min(axis=0)
    assert found.cost == pytest.approx(total.min())
    assert found.width == 1


def test_a_ring_has_width_two_and_a_grid_as_many_as_it_is_wide() -> None:
    rng = np.random.default_rng(1)
    ring = [Table((i, (i + 1) % 20), rng.random((3, 3))) for i in range(20)]
    assert minimise([3] * 20, ring).width == 2
    edges = [((r, c), (r + i, c + 1 - i)) for r in range(5) for c in range(5) for i in (0, 1)]
    grid = [Table((5 * a + b, 5 * c + d), rng.random((2, 2))) for (a, b), (c, d) in edges if c < 5 and d < 5]
    assert minimise([2] * 25, grid).width <= 7


def test_splitting_says_how_far_from_the_best_it_may_be() -> None:
    rng = np.random.default_rng(2)
    every = [Table(pair, rng.random((3, 3))) for pair in itertools.combinations(range(14), 2)]
    exact, split = minimise([3] * 14, every, 3**14), minimise([3] * 14, every, 3**5)
    assert exact.exact
    assert exact.width == 13
    assert not split.exact
    assert split.width == 4
    assert split.bound <= exact.cost <= split.cost


def test_all_forbidden_costs_infinity() -> None:
    assert minimise([2], [Table((0,), np.full(2, math.inf))]).cost == math.inf
    assert minimise([], []).cost == 0


def test_a_table_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        minimise([2, 2], [Table((0, 1), np.zeros((2, 3)))])
