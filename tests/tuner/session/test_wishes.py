"""Sessions that are asked to pause, or to leave a task out."""

from __future__ import annotations

from tests.tuner.session.support import CONV, POINT, SMALL, VERSIONS, latency, replayed
from tuner.devices import Device
from tuner.measure.replay.runner import ReplayRunner, computed
from tuner.session import Budget, Progress, Stopped, TuneOptions, tune
from tuner.session.session_budget import BATCH
from tuning_db.run_control import pause, resume, skip
from tuning_db.store import Store


def test_a_task_that_is_skipped_gets_no_more_trials_and_the_others_get_theirs(device: Device, store: Store) -> None:
    def on_trial(progress: Progress) -> None:
        if progress.task == CONV:
            skip(store, CONV.workload, device.key)

    report = replayed(device, store, [CONV, POINT], Budget(trials=80), progress=on_trial, searcher="random")
    conv, point = report.tasks
    assert 0 < conv.trials <= BATCH
    assert point.trials == 80 - conv.trials
    assert "conv: skipped, by `tune watch`" in report.remarks
    again = replayed(device, store, [CONV, POINT], Budget(trials=120), searcher="random")
    assert again.tasks[0].trials > BATCH


def test_skipping_every_task_ends_a_session(device: Device, store: Store) -> None:
    def on_trial(progress: Progress) -> None:
        skip(store, progress.task.workload, device.key)

    report = replayed(device, store, [CONV, SMALL], Budget(trials=200), progress=on_trial, searcher="random")
    assert report.stopped is Stopped.DONE
    assert report.trials <= 2 * BATCH


def test_a_pause_takes_nothing_of_the_time_budget(device: Device, store: Store) -> None:
    runner = ReplayRunner(device.key, computed(latency), VERSIONS)
    slept, notices = [0.0], list[str]()

    def notice(text: str) -> None:
        """The session waits: an hour passes."""
        notices.append(text)
        slept[0] += 3600.0
        resume(store)

    def on_trial(progress: Progress) -> None:
        if progress.session_trials == 1:
            pause(store)

    report = tune(
        [CONV, POINT],
        device,
        store,
        runner,
        TuneOptions(
            searcher="random",
            budget=Budget(trials=60, seconds=1000.0),
            progress=on_trial,
            clock=lambda: runner.clock() + slept[0],
            notice=notice,
        ),
    )
    assert [text for text in notices if "paused" in text] == notices[:1]
    assert report.stopped is Stopped.TRIALS
    assert report.trials == 60
    assert report.seconds < 3600
