"""The kernels with the least peak are found among all combinations, and a limit is kept at the least known cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import hypothesis.strategies as st
from hypothesis import given

from tuner.graph.layout.choice import Choice
from tuner.graph.layout.peak import Kernels, Problem, size_of
from tuner.graph.layout.weights import Option
from tuning_db.record import Config, Workload

SIZES, SPACES, SECONDS = st.integers(0, 50), st.sampled_from([0, 1, 10, 40, math.inf]), st.integers(1, 9)
OFFERS = st.lists(st.lists(st.tuples(SIZES, SPACES, SECONDS), min_size=1, max_size=4), max_size=4)


def _problem(offers: list[list[tuple[int, float, int]]], others: int, most_weights: float) -> Problem:
    """The problem of choosing one kernel of each list, all of them measured on one device."""
    offered, spaces = {}, {}
    for i, kernels in enumerate(offers):
        workload = Workload("any", {"i": i})
        offered[workload] = []
        for j, (size, space, seconds) in enumerate(kernels):
            config = Config("any.any", {"j": j})
            offered[workload].append(Option(Choice(config, "device", seconds), size, seconds))
            spaces[workload, config] = space
    now = {workload: options[0] for workload, options in offered.items()}
    return Problem(now, offered, spaces, fixed=7, others=others, most_weights=most_weights)


def _all(problem: Problem) -> Iterator[Kernels]:
    """Every combination that can be used, with weights that fit."""
    for options in product(*problem.offered.values()):
        kernels = dict(zip(problem.offered, options, strict=True))
        if problem.largest(kernels) < math.inf and size_of(kernels) <= problem.most_weights:
            yield kernels


def test_a_kernel_that_is_not_known_to_be_as_fast_is_not_taken_for_some_bytes() -> None:
    workload = Workload("any", {})
    measured = Option(Choice(Config("any.any", {"k": 0}), "device", 1.0), 10_000, 1.0)
    for size, taken in ((9_995, False), (9_000, True)):
        unknown = Option(Choice(Config("any.any", {"k": 1}), "default"), 10_000, math.inf)
        spaces = {(workload, Config("any.any", {"k": k})): space for k, space in ((0, 10_000), (1, size))}
        problem = Problem({workload: measured}, {workload: [measured, unknown]}, spaces, 0, 0, math.inf)
        assert problem.least() == {workload: unknown if taken else measured}


def _seconds(kernels: Kernels) -> float:
    return sum(option.seconds for option in kernels.values())


@given(OFFERS, st.sampled_from([0, 5]), st.sampled_from([math.inf, 60]))
def test_none_has_a_lower_peak_and_none_of_equal_ones_is_faster(
    offers: list[list[tuple[int, float, int]]], others: int, most_weights: float
) -> None:
    problem = _problem(offers, others, most_weights)
    found, known = problem.least(), list(_all(problem))
    assert (found is None) == (not known)
    if found is not None:
        assert found in known
        peak = min(map(problem.peak, known))
        assert problem.peak(found) == peak
        sizes = {w: option.size for w, option in found.items()}
        equal = [k for k in known if problem.peak(k) == peak and {w: o.size for w, o in k.items()} == sizes]
        assert _seconds(found) == min(map(_seconds, equal))


@given(OFFERS, st.sampled_from([0, 5]), st.sampled_from([math.inf, 60]), st.integers(0, 200))
def test_a_limit_is_kept_where_that_is_possible(
    offers: list[list[tuple[int, float, int]]], others: int, most_weights: float, limit: int
) -> None:
    """Kernels that keep the limit already stay as they are."""
    problem = _problem(offers, others, most_weights)
    found = problem.fastest(limit)
    fitting = [kernels for kernels in _all(problem) if problem.peak(kernels) <= limit]
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting
        if problem.now in fitting:
            assert _seconds(found) <= _seconds(problem.now)
