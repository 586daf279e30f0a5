"""The portfolio: shares by recent gain, and what happens when a member fails."""

from __future__ import annotations

import pytest

from tests.tuner.search.landscape import landscape, tiny_space, trial_of
from tuner.errors import SearchFailed
from tuner.search.model_guided import ModelGuidedSearcher
from tuner.search.portfolio import PortfolioOptions, PortfolioSearcher
from tuning_db.record import Config


def fail(*_: object, **__: object) -> list[Config]:
    raise SearchFailed("xgboost: out of cheese")


def test_weights_follow_recent_gains_and_none_is_abandoned() -> None:
    scape = landscape(winograd_base=90e-6)
    searcher = PortfolioSearcher(scape.space, 0, (), PortfolioOptions(memory=8, opening=16))
    before = searcher.weights()
    assert before == pytest.approx({"model": 0.8, "genetic": 0.1, "annealing": 0.1})
    first = searcher.propose(16)
    searcher.observe([trial_of(c, 1.0) for c in first])
    batch = searcher.propose(32)
    genetic = next(m for m in searcher._members if m.name == "genetic")
    lucky = next(c for c in batch if c.key in genetic.proposed)
    searcher.observe([trial_of(lucky, 0.5)])
    assert searcher.weights()["genetic"] > 0.5
    searcher.observe([trial_of(c, 1.0) for c in batch if c != lucky] + [trial_of(lucky, 1.0)] * 200)
    assert searcher.weights()["genetic"] > 0.5  # the only one that gained, however long ago
    assert min(searcher.weights().values()) >= 0.03


def test_a_failed_member_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelGuidedSearcher, "propose", fail)
    space = tiny_space()
    searcher = PortfolioSearcher(space, 0)
    assert len({c.key for c in searcher.propose(100)}) == 22
    assert searcher.failures == {"model": "xgboost: out of cheese"}
    assert searcher.propose(1) == []


def test_where_all_members_fail_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelGuidedSearcher, "propose", fail)
    searcher = PortfolioSearcher(tiny_space(), 0, (), PortfolioOptions(genetic=0.0, annealing=0.0))
    with pytest.raises(SearchFailed, match="model: xgboost: out of cheese"):
        searcher.propose(4)
