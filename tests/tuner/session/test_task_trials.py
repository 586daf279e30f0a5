"""What follows from the trials of a task, whatever they are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning_db.made import CONV, LAPTOP, trial
from tuner.session.task_trials import TaskTrials
from tuning_db.record import FailureKind, Trial
from tuning_db.store import open_db

SECONDS = st.none() | st.sampled_from([1e-3, 2e-3, 3e-3, 4e-3])
KINDS = st.sampled_from([FailureKind.COMPILE, FailureKind.DEVICE_LOST])
MADE = st.builds(trial, st.integers(0, 4), SECONDS, kind=KINDS, throttled=st.booleans())
# No two trials are equal, as no two that were measured are.
TRIALS = st.lists(MADE, max_size=20).map(lambda made: [replace(t, seed=i) for i, t in enumerate(made)])


@given(TRIALS)
def test_the_best_is_the_first_that_stands(trials: list[Trial]) -> None:
    known = TaskTrials([])
    for added in trials:
        known.add(added)
        standing = known.standing()
        assert known.best_seconds == (standing[0].seconds if standing else math.inf)
        assert all(t.ok for t in standing)
        assert len({t.config for t in standing}) == len(standing)
    assert known.recorded == trials


@given(TRIALS)
@settings(max_examples=25)
def test_the_best_is_that_of_the_database(tmp_path_factory: pytest.TempPathFactory, trials: list[Trial]) -> None:
    """It is the same of several that are equally fast, too."""
    with open_db(tmp_path_factory.mktemp("store") / "t.db") as store:
        store.add_many(trials)
        standing = TaskTrials(trials).standing()
        best = store.best(CONV, LAPTOP)
    assert (best and best.seed) == (standing[0].seed if standing else None)


@given(TRIALS)
def test_every_config_counts_once(trials: list[Trial]) -> None:
    known = TaskTrials(trials)
    configs = {t.config for t in trials}
    assert known.tried == len(known.curve) == len(configs)
    assert list(known.curve) == sorted(known.curve, reverse=True)
    assert all(known.has_tried(config) for config in configs)
    assert 0 <= known.since_improved <= known.tried
    assert sum(known.failures().values()) == sum(not t.ok for t in trials)


@given(TRIALS, st.data())
def test_a_trial_that_is_marked_later_ranks_as_if_it_had_been_marked_at_once(
    trials: list[Trial], data: st.DataObject
) -> None:
    marked = {i for i, t in enumerate(trials) if t.ok and not t.throttled and data.draw(st.booleans())}
    later = [
        replace(t, versions={**t.versions, "throttled": "drift"}) if i in marked else t for i, t in enumerate(trials)
    ]
    known = TaskTrials(trials)
    for i in marked:
        known.replace(trials[i], later[i])
    assert known.recorded == later
    assert known.standing() == TaskTrials(later).standing()
    assert known.best_seconds == TaskTrials(later).best_seconds
