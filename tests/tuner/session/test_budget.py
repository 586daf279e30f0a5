"""What a session may spend: budgets, interruptions and resuming, patience. Times are replayed on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, count, repeat

import pytest

from templates.template import search_space
from tests.tuner.session.support import CONV, POINT, SMALL, STRANGE, VERSIONS, configs_tried, records, replayed
from tuner.devices import Device
from tuner.measure.replay.runner import ReplayRunner, computed
from tuner.measure.runner import Candidate
from tuner.session import PRESETS, Budget, Progress, Stopped, TuneOptions, tune
from tuner.session.budget import FLOOR, allowance
from tuner.session.session_budget import BATCH
from tuning_db.store import Store, open_db

BUDGETS = [
    pytest.param(Budget(preset="quick"), id="quick"),
    pytest.param(Budget(trials=70), id="trials"),
    pytest.param(Budget(seconds=20), id="seconds"),
    pytest.param(Budget(trials=1000, seconds=15, preset="normal"), id="all"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("searcher", ["auto", "model_guided", "random"])
def test_a_second_session_with_the_same_budget_measures_nothing(
    device: Device, store: Store, budget: Budget, searcher: str
) -> None:
    tasks = [CONV, POINT, SMALL, STRANGE]
    first = replayed(device, store, tasks, budget, searcher=searcher)
    recorded = records(store)
    assert first.new_trials == first.trials == configs_tried(store) > 3 * FLOOR
    for seed in (0, 1):
        second = replayed(device, store, tasks, budget, searcher=searcher, seed=seed)
        assert second.new_trials == 0
        assert second.trials == first.trials
        assert [t.best_config for t in second.tasks] == [t.best_config for t in first.tasks]
        assert [t.first_seconds for t in second.tasks] == [t.first_seconds for t in first.tasks]
    assert records(store) == recorded


@pytest.mark.sampled(2)
@pytest.mark.parametrize("budget", BUDGETS)
def test_interrupted_sessions_add_up_to_one(device: Device, store: Store, budget: Budget) -> None:
    """However often it is interrupted, tuning with a budget takes about that budget, and then it is done."""
    whole = replayed(device, store, [CONV, POINT], budget)
    total = 0
    with open_db(store.name + ".again") as again:
        for _ in range(100):
            seen = 0

            def interrupt(_: Progress) -> None:
                nonlocal seen
                seen += 1
                if seen == 23:
                    raise KeyboardInterrupt

            report = replayed(device, again, [CONV, POINT], budget, progress=interrupt)
            total += report.new_trials
            assert total == configs_tried(again) == report.trials
            assert again.in_flight() == []
            if report.stopped is not Stopped.INTERRUPTED:
                break
        assert report.stopped is whole.stopped
        assert total == pytest.approx(whole.trials, rel=0.35)


def test_a_larger_budget_goes_on(device: Device, store: Store) -> None:
    assert replayed(device, store, [CONV], Budget(trials=20)).new_trials == 20
    assert replayed(device, store, [CONV], Budget(trials=50)).new_trials == 30
    assert replayed(device, store, [CONV], Budget(seconds=5)).new_trials == 0  # 50 trials took longer
    later = replayed(device, store, [CONV], Budget(seconds=15))
    assert later.stopped is Stopped.TIME
    assert 40 < later.new_trials < 80


def test_new_tasks_bring_their_share_of_a_used_up_budget(device: Device, store: Store) -> None:
    for budget, least, most in ((Budget(trials=60), 30, 30), (Budget(seconds=10), 25, 50)):
        with open_db(store.name + str(budget.trials)) as other:
            replayed(device, other, [CONV], budget)
            both = replayed(device, other, [CONV, POINT], budget)
            assert least <= both.new_trials <= most
            assert both.tasks[1].new_trials >= FLOOR
            assert replayed(device, other, [CONV, POINT], budget).new_trials == 0


def test_one_new_task_of_many_is_searched_for_in_the_time_that_it_brings() -> None:
    left = allowance(Budget(seconds=540), 2000, 600, tasks=20, new_tasks=1)
    assert left.seconds == pytest.approx(27)
    assert 20 < left.search_seconds < 27
    assert allowance(Budget(seconds=540), 2000, 600, tasks=20, new_tasks=0).search_seconds <= 0


def test_an_interrupted_session_keeps_the_share_of_tasks_that_it_has_not_come_to(device: Device, store: Store) -> None:
    budget = Budget(trials=60)
    replayed(device, store, [CONV], budget)

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    assert replayed(device, store, [CONV, POINT, SMALL], budget, progress=interrupt).stopped is Stopped.INTERRUPTED
    assert replayed(device, store, [CONV, POINT, SMALL], budget).new_trials == 20
    assert replayed(device, store, [CONV, POINT, SMALL], budget).new_trials == 0


def test_the_seconds_of_a_budget_are_kept(device: Device, store: Store) -> None:
    report = replayed(device, store, [CONV, POINT], Budget(seconds=30))
    assert report.stopped is Stopped.TIME
    assert 24 < report.seconds < 30.5
    assert all(t.confirmed for t in report.tasks)  # the reserve was enough for the comparisons


@pytest.mark.parametrize("seconds", [12 + i / 8 for i in range(16)])
def test_time_between_trials_counts_too(device: Device, store: Store, seconds: float) -> None:
    """On a clock that every reading moves, as a real one does, nothing is left over for the next session: wherever
    the time ends, in a batch or between two of them. One config works, so there is nothing to compare."""
    times, ticks = chain([1e-3], repeat(math.inf)), count()
    runner, budget = ReplayRunner(device.key, computed(lambda _: next(times)), VERSIONS), Budget(seconds=seconds)
    first = tune(
        [CONV],
        device,
        store,
        runner,
        TuneOptions(searcher="random", budget=budget, clock=lambda: runner.clock() + 0.3 * next(ticks)),
    )
    assert first.stopped is Stopped.TIME
    assert first.trials > FLOOR
    assert replayed(device, store, [CONV], budget, searcher="random").new_trials == 0


def test_a_budget_too_small_for_all_tasks_is_used_up_all_the_same(device: Device, store: Store) -> None:
    assert replayed(device, store, [CONV, POINT], Budget(seconds=0.9)).tasks[1].trials == 0
    assert replayed(device, store, [CONV, POINT], Budget(seconds=0.9)).new_trials == 0
    assert replayed(device, store, [CONV, POINT], Budget(trials=5)).new_trials == 0


def test_a_preset_caps_every_task(device: Device, store: Store) -> None:
    def descending(_: Candidate) -> float:
        """Every trial is better by two percent than the one before: patience never ends."""
        nonlocal now
        now *= 0.98
        return now

    now = 1.0
    replayed(device, store, [CONV], Budget(trials=21), descending)  # the last batch is a smaller one then
    report = replayed(device, store, [CONV, POINT], Budget(preset="quick"), descending)
    assert [t.trials for t in report.tasks] == [PRESETS["quick"].trials] * 2
    assert report.stopped is Stopped.DONE


def test_a_task_stops_early_when_nothing_improves(device: Device, store: Store) -> None:
    report = replayed(device, store, [CONV], Budget(preset="normal"), lambda _: 1e-3)
    assert PRESETS["normal"].patience < report.trials <= PRESETS["normal"].patience + BATCH
    assert report.stopped is Stopped.DONE


def test_improvements_below_one_percent_do_not_keep_a_task_going_unless_they_add_up(
    device: Device, store: Store
) -> None:
    def shrinking(factor: float) -> Callable[[Candidate], float]:
        times = (factor**i for i in count())
        return lambda _: next(times)

    patience = PRESETS["quick"].patience
    report = replayed(device, store, [CONV], Budget(preset="quick"), shrinking(1 - 1e-4))
    assert patience < report.trials <= patience + BATCH
    report = replayed(device, store, [POINT], Budget(preset="quick"), shrinking(1 - 1e-3))
    assert report.trials == PRESETS["quick"].trials


def test_an_exhausted_space_is_tried_once_and_entirely(device: Device, store: Store) -> None:
    space = search_space(SMALL.workload, device.target)
    assert space is not None
    report = replayed(device, store, [SMALL], Budget(preset="exhaustive"))
    assert report.trials == len(list(space))
    assert report.stopped is Stopped.DONE
    assert replayed(device, store, [SMALL], Budget(preset="exhaustive")).new_trials == 0
