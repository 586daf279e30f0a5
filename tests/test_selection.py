"""A sample has its share of the cases, and none is left out by every commit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.selection import sampled_in

CASES = st.sets(st.text(min_size=1), min_size=1, max_size=40)


@given(st.text(), CASES, st.integers(1, 9), st.text())
def test_it_has_its_share(test: str, cases: set[str], one_in: int, commit: str) -> None:
    chosen = sampled_in(test, cases, one_in, commit)
    assert chosen <= cases
    assert len(cases) // one_in <= len(chosen) <= -(-len(cases) // one_in)
    assert chosen == sampled_in(test, sorted(cases), one_in, commit)  # in whatever order they are collected


@given(st.text(), CASES, st.integers(1, 9))
def test_commits_run_all(test: str, cases: set[str], one_in: int) -> None:
    chosen = set[str]()
    for commit in map(str, range(200)):
        chosen |= sampled_in(test, cases, one_in, commit)
    assert chosen == cases
