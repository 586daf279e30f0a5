"""The replaying runner: answers from trials and from functions, on a clock of its own."""

from __future__ import annotations

import math

import pytest

from tuner.measure.replay.runner import ReplayRunner, computed, recorded
from tuner.measure.runner import Candidate
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload

DEVICE = DeviceKey("cpu", "synthetic", "analytic")
WORKLOAD = Workload("dense", {"rows": 1})
A, B, C = (Config("t", {"i": i}) for i in range(3))


def trial(config: Config, *times: float, failure: Failure | None = None) -> Trial:
    return Trial(WORKLOAD, DEVICE, config, 3, times=times, failure=failure)


def test_recorded_trials_answer_the_latest_first_and_failures_stay_failures() -> None:
    broken = Failure(FailureKind.RUN, "killed by SIGSEGV")
    answer = recorded([trial(A, 1.0), trial(B, failure=broken), trial(A, 2.0, 3.0, 4.0)])
    with ReplayRunner(DEVICE, answer, {"t": 3}) as runner:
        a, b, c = runner.measure([Candidate(WORKLOAD, config) for config in (A, B, C)])
    assert (a.times, a.config, a.template_version, a.error) == ((2.0, 3.0, 4.0), A, 3, 0.0)
    assert (b.failure, b.seconds) == (broken, math.inf)
    assert c.failure is not None
    assert c.failure.kind is FailureKind.INVALID


def test_a_function_answers_and_the_clock_goes_on_by_each_trial() -> None:
    runner = ReplayRunner(
        DEVICE, computed(lambda c: math.inf if c.config == B else 1.0 + c.config["i"]), trial_seconds=0.5
    )
    measured = runner.measure([Candidate(WORKLOAD, config) for config in (A, B, C)])
    assert next(measured).seconds == 1.0
    assert runner.clock() == 0.5
    rest = list(measured)
    assert [t.ok for t in rest] == [False, True]
    assert [t.seconds for t in runner.compare([Candidate(WORKLOAD, C), Candidate(WORKLOAD, A)])] == [3.0, 1.0]
    assert runner.clock() == pytest.approx(2.5)
