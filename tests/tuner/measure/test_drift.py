"""Drift: a device that becomes slower is noticed by the reference kernel, and what was measured meanwhile is marked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.board_agent.support import Agent
from tests.tuner.cli.conftest import TUNE, run_tune
from tuner.devices import open_device, pin_current_process
from tuner.devices.board import Boards
from tuner.measure import LocalRunner
from tuner.measure.messages import CompareJob, ExecutorSettings
from tuner.measure.targets.drift import Drift, Interval, ReferenceKernel
from tuner.measure.targets.executor import Host
from tuning_db.store import open_db

SIMULATED = str(Path(__file__).parents[3] / "benchmarks" / "simulated_board.py")


class Slowing(Host):
    """The host, with a clock that tells `factor` times what calls take; `calls` from now on, or all."""

    factor, calls = 1.0, float("inf")

    def seconds(self, function: Any, *arguments: Any) -> float:
        self.calls -= 1
        return super().seconds(function, *arguments) * (self.factor if self.calls >= 0 else 1.0)


@pytest.fixture(autouse=True)
def cores() -> Iterator[None]:
    """A place holds the process that it is opened in on its cores: here all of the tests."""
    before = os.sched_getaffinity(0)
    yield
    pin_current_process(before)


@pytest.fixture(scope="module")
def settings() -> Iterator[ExecutorSettings]:
    with LocalRunner(open_device("cpu", 1)) as runner:
        yield runner._client._settings


def reference(settings: ExecutorSettings) -> tuple[ReferenceKernel, Slowing]:
    executor = Slowing(settings.threads, settings.cpus, settings.pool)
    made = ReferenceKernel(settings, executor)
    assert made.problem() is None
    return made, executor


def test_a_slower_device_is_seen_and_a_moment_is_not(settings) -> None:
    kernel, executor = reference(settings)
    before = kernel.measure()
    assert 1e-7 < before < 1e-2
    executor.factor, executor.calls = 10.0, 30
    assert kernel.measure() < 5 * before
    executor.factor, executor.calls = 10.0, float("inf")
    assert kernel.measure() > 5 * before
    executor.factor = 1.0
    assert kernel.measure() < 5 * before


def test_the_reference_takes_no_more_than_its_share(settings) -> None:
    now, executor = [0.0], Slowing(settings.threads, settings.cpus, settings.pool)
    kernel = ReferenceKernel(settings, executor, lambda: now[0])
    assert kernel.problem() is None
    steady, cost = executor.steady, 0.05

    def measured(*arguments: Any) -> list[float]:
        now[0] += cost
        return steady(*arguments)

    executor.steady = measured  # type: ignore[method-assign]
    kernel.measure()
    ended = now[0]
    assert not kernel.is_due(None)
    now[0] = ended + 199 * cost
    assert not kernel.is_due(None)
    assert kernel.is_due(CompareJob((), (), 1))
    now[0] = ended + 201 * cost
    assert kernel.is_due(None)


def drift() -> tuple[Drift, list[str], list[float]]:
    notices, now = [], [0.0]
    return Drift("board pi", notices.append, lambda: now[0]), notices, now


def intervals(made: Drift, now: list[float], *seconds: float) -> list[Interval]:
    """That lie between measurements, five seconds apart."""
    found = []
    for one in seconds:
        found.append(made.interval)
        made.add(one)
        now[0] += 5
    return found[1:]


def test_an_interval_in_which_the_device_changed_is_disturbed() -> None:
    made, notices, now = drift()
    found = intervals(made, now, 10e-6, 10.5e-6, 12e-6, 11.9e-6, 9.9e-6)
    assert [i.is_disturbed for i in found] == [False, True, False, True]
    assert not made.interval.is_disturbed
    assert notices == [
        "board pi slowed down by 14%: results of the last 5 s are marked",
        "board pi became faster by 17%: results of the last 5 s are marked",
    ]


def test_drift_by_and_by_is_told_of_and_marks_nothing() -> None:
    made, notices, now = drift()
    found = intervals(made, now, 10e-6, 10.5e-6, 11.2e-6, 11.8e-6, 12.4e-6)
    assert not any(i.is_disturbed for i in found)
    assert notices == ["board pi slowed down by 12%: little by little", "board pi slowed down by 11%: little by little"]


def test_the_summary() -> None:
    made, _, now = drift()
    assert made.summary is None
    intervals(made, now, 12.1e-6)
    assert made.summary is None
    intervals(made, now, 12.6e-6, 12.3e-6)
    expected = "reference kernel on board pi: 12.1 us at the start, 12.3 us at the end, at most +4% between"
    assert made.summary == expected


@pytest.mark.night
def test_a_board_that_becomes_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By half, after some trials: those around the change are marked, and none of them is the best."""
    assert TUNE.exists()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    agent = Agent(tmp_path, [SIMULATED, "0.6,1.5,10"])
    try:
        agent.pair(Boards(), "pi")
        conv = ("conv2d", "--shape", "1,16,14,14,16,3,3", "--padding", 1, "--threads", 1)
        done = run_tune("op", *conv, "--device", "board:pi", "--trials", 24, "--db", "t.db", cwd=tmp_path)
    finally:
        agent.stop()
    assert done.status == 0, done.err
    assert re.search(r"board pi slowed down by \d+%: results of the last \d+ s are marked", done.err)
    assert re.search(r"reference kernel on board pi: \S+ us at the start, .* at most \+\d+% between", done.err)
    with open_db(tmp_path / "t.db") as store:
        searched = [t for t in store.trials() if len(t.times) != 9]  # of a comparison at the end
        marked = [i for i, t in enumerate(searched) if t.throttled]
        assert 1 <= len(marked) < len(searched)  # how many batches end between two looks is for the machine
        assert {9, 10}.intersection(marked)  # others too, where the machine changes as well
        (workload,) = store.workloads()
        (device,) = store.devices()
        assert not store.best(workload, device).throttled
