"""A trial that is marked after it was stored: what it says stays, and it is not a best while there is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuning_db.made import CONV, LAPTOP, trial
from tuning_db import maintain
from tuning_db.errors import DatabaseError
from tuning_db.store import Store
from tuning_db.trial_flags import mark_throttled


def test_a_marked_trial_is_the_same_but_for_the_mark(store: Store) -> None:
    store.add_many([trial(1), trial(2), trial(3)])
    marked = mark_throttled(store, trial(2), "drift")
    assert marked == replace(trial(2), versions={**trial(2).versions, "throttled": "drift"})
    assert marked.throttled
    assert list(store.trials()) == [trial(1), marked, trial(3)]
    assert list(maintain.verify(store)) == []


def test_a_marked_trial_is_best_only_where_there_is_no_other(store: Store) -> None:
    store.add_many([trial(1, 1e-3), trial(2, 2e-3)])
    fastest = mark_throttled(store, trial(1, 1e-3), "drift")
    assert store.best(CONV, LAPTOP) == trial(2, 2e-3)
    mark_throttled(store, trial(2, 2e-3), "drift")
    assert store.best(CONV, LAPTOP) == fastest


def test_pruning_keeps_what_is_not_marked(store: Store) -> None:
    store.add_many([trial(1, 1e-3), trial(2, 2e-3), trial(3, 3e-3)])
    mark_throttled(store, trial(1, 1e-3), "drift")
    maintain.prune(store, keep_best=1)
    assert list(store.trials()) == [trial(2, 2e-3)]


def test_what_is_not_there_cannot_be_marked(store: Store) -> None:
    store.add(trial(1))
    with pytest.raises(DatabaseError, match="not there any more"):
        mark_throttled(store, trial(2), "drift")
    assert list(store.trials()) == [trial(1)]
