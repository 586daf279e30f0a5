"""Sessions whose runner measures many candidates at a time: it is never short of any, whatever the tasks are."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.tuner.session.support import CONV, POINT, SMALL, WideReplay
from tuner.devices import Device
from tuner.session import Budget, Progress, Stopped, TuneOptions, tune
from tuner.session.budget import FLOOR
from tuning_db.claims import Claims
from tuning_db.run_control import pause, resume
from tuning_db.store import Store

WIDTH = 32


def configs_of(store: Store) -> Counter[tuple[str, str]]:
    return Counter((t.workload.key, t.config.key) for t in store.trials())


def test_all_of_it_is_used_and_the_budget_is_kept(device: Device, store: Store) -> None:
    runner = WideReplay(device, WIDTH)
    report = tune([CONV, POINT], device, store, runner, TuneOptions(budget=Budget(trials=200), clock=runner.clock))
    assert report.stopped is Stopped.TRIALS
    assert runner.most == WIDTH + WIDTH // 2
    assert runner.tasks == 2
    assert report.trials == len(configs_of(store)) == 200
    assert store.in_flight() == []


def test_no_task_waits_for_others_and_each_has_its_first_seeds(device: Device, store: Store) -> None:
    runner = WideReplay(device, WIDTH)
    report = tune(
        [CONV, POINT, SMALL], device, store, runner, TuneOptions(budget=Budget(preset="quick"), clock=runner.clock)
    )
    assert all(FLOOR <= task.trials <= 48 for task in report.tasks)
    assert store.in_flight() == []


def test_no_config_is_searched_twice(device: Device, store: Store) -> None:
    runner, searched = WideReplay(device, WIDTH), Counter[tuple[str, str]]()

    def on_trial(progress: Progress) -> None:
        searched[progress.task.name, progress.config.key] += progress.phase == "search"

    tune(
        [CONV, POINT],
        device,
        store,
        runner,
        TuneOptions(budget=Budget(trials=150), progress=on_trial, clock=runner.clock),
    )
    assert max(searched.values()) == 1
    assert sum(searched.values()) == 150


def test_an_interrupt_keeps_what_was_measured_and_takes_back_the_rest(device: Device, store: Store) -> None:
    def on_trial(progress: Progress) -> None:
        if progress.session_trials >= 70:
            assert len(store.in_flight()) >= WIDTH // 2
            raise KeyboardInterrupt

    runner = WideReplay(device, WIDTH)
    report = tune([CONV, POINT], device, store, runner, TuneOptions(budget=Budget(trials=200), progress=on_trial))
    assert report.stopped is Stopped.INTERRUPTED
    assert report.trials == len(configs_of(store)) >= 70
    assert store.in_flight() == []
    again = tune([CONV, POINT], device, store, runner, TuneOptions(budget=Budget(trials=200), clock=runner.clock))
    assert again.new_trials == 200 - report.trials
    assert len(configs_of(store)) == 200


def test_a_failure_of_the_runner_keeps_what_was_measured(device: Device, store: Store) -> None:
    class Failing(WideReplay):
        def measure(self, *arguments):  # type: ignore[no-untyped-def]
            for number, trial in enumerate(super().measure(*arguments)):
                if number == 50:
                    raise RuntimeError("it is broken")
                yield trial

    runner = Failing(device, WIDTH)
    with pytest.raises(RuntimeError, match="it is broken"):
        tune([CONV, POINT], device, store, runner, TuneOptions(budget=Budget(trials=200), clock=runner.clock))
    assert len(configs_of(store)) == 50
    assert store.in_flight() == []


def test_others_keep_off_the_tasks_that_are_under_way(device: Device, store: Store) -> None:
    other = Claims(store, device.key, "elsewhere:1/x", 1000.0)
    taken = []

    def on_trial(_: Progress) -> None:
        under_way = {entry.workload for entry in store.in_flight()}
        if len(under_way) == 2:
            taken.extend(other.take(workload) for workload in under_way)

    runner = WideReplay(device, WIDTH)
    tune(
        [CONV, POINT],
        device,
        store,
        runner,
        TuneOptions(budget=Budget(trials=120), progress=on_trial, clock=runner.clock),
    )
    assert taken
    assert not any(taken)
    assert other.of_others() == {}, "all is given back at the end"


def test_a_pause_waits_until_all_that_is_under_way_has_ended(device: Device, store: Store) -> None:
    notices, asked = list[str](), list[int]()

    def on_trial(progress: Progress) -> None:
        if progress.session_trials >= 60 and not asked:
            pause(store)
            asked.append(len(store.in_flight()))

    def notice(text: str) -> None:
        notices.append(text)
        asked.append(len(store.in_flight()))
        resume(store)

    runner = WideReplay(device, WIDTH)
    report = tune(
        [CONV, POINT],
        device,
        store,
        runner,
        TuneOptions(budget=Budget(trials=120), progress=on_trial, clock=runner.clock, notice=notice),
    )
    assert report.trials == 120
    assert len(notices) == 1
    assert asked[0] > asked[1] == 0
