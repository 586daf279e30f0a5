"""Searchers by name and with options, as a person writes them."""

from __future__ import annotations

import pytest

from tests.tuner.search.landscape import tiny_space
from tuner.errors import BadInput
from tuner.search import check_searcher, make_searcher
from tuner.search.genetic import GeneticSearcher


def test_options_are_read_by_the_type_of_their_default() -> None:
    searcher = make_searcher("genetic:population=9,mutation=0.5,stop=yes", tiny_space(), 0)
    assert isinstance(searcher, GeneticSearcher)
    assert (searcher._options.population, searcher._options.mutation, searcher._options.stop) == (9, 0.5, True)
    assert check_searcher("genetic:") == "genetic:"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "bayes",
            r"no searcher is named 'bayes' \(known: annealing, auto, autotvm_ga, autotvm_xgb, genetic, grid",
        ),
        ("genetic:populatoin=9", r"genetic has no option 'populatoin' \(its options: population=32, growth"),
        ("random:seeds=1", r"random has no option 'seeds' \(its options: none\)"),
        ("genetic:population=many", r"genetic: population='many' is not a value of type int"),
        ("genetic:stop=perhaps", r"genetic: stop='perhaps' is not a value of type bool"),
        ("genetic:population=3", r"genetic: population and smallest must be larger than elites"),
        ("annealing:hot=0", r"annealing: chains and trials are at least 1"),
        ("auto:model=0,genetic=0,annealing=0", r"auto: at least one of model, genetic and annealing is above 0"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_searcher(spec)
