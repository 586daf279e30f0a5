"""What a command shows while it works: what it is doing, and of a session the task at work, the whole network's time,
and how much is left."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from templates.workloads import Conv2d
from tests.tuning_db.made import trial
from tuner.activity import activity
from tuner.cli.progress import Display
from tuner.session import Progress
from tuner.tasks import Task

CONV = Conv2d(1, 64, 56, 56, 64, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"))


def progress(measured: int = 8, left: float | None = 90.0) -> Progress:
    last = trial(1, 5e-4, workload=CONV)
    return Progress(
        phase="search",
        task=Task(CONV, 2, "conv"),
        index=3,
        tasks=8,
        trials=17,
        best_seconds=4e-4,
        gflops=120.0,
        config=last.config,
        last=last,
        failures={},
        session_trials=60,
        trials_per_second=2.5,
        seconds_left=left,
        elapsed=30.0,
        measured=measured,
        first_total=0.0283 * bool(measured),
        best_total=0.0169 * bool(measured),
    )


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def displayed(terminal: bool, clock: Clock) -> Iterator[tuple[Display, io.StringIO]]:
    out = io.StringIO()
    with Display(Console(file=out, width=80 if terminal else 140, force_terminal=terminal), clock) as display:
        yield display, out


def shown(what: Progress, terminal: bool) -> str:
    with displayed(terminal, Clock()) as (_, out), activity("tuning") as meter:
        meter(1, what)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_networks_time_and_gain_so_far_are_shown(terminal: bool) -> None:
    assert "16.9 ms, 1.67 times faster than at first" in shown(progress(), terminal)
    assert "than at first (5 of 8 measured)" in shown(progress(measured=5), terminal)
    assert "nothing measured yet" in shown(progress(measured=0), terminal)


def test_a_terminal_has_a_bar_of_the_time_that_is_over() -> None:
    assert "━" in shown(progress(), terminal=True)
    assert "━" not in shown(progress(left=None), terminal=True)
    lines = shown(progress(), terminal=False).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        "task 4 of 8: conv2d 64x56x56 -> 64, 3x3/1 +bias +relu; searching; trials 17 of this task"
    )
    assert lines[0].endswith("time left 1:30")


def test_a_file_gets_a_line_of_what_lasts_and_fewer_of_what_lasts_long() -> None:
    clock = Clock()
    with displayed(False, clock) as (display, out), activity("compiling 52 functions"):
        for second in range(90):
            clock.seconds = float(second)
            display.tick()
    lines = out.getvalue().splitlines()
    assert lines[0] == "compiling 52 functions, 0:05"
    assert 4 <= len(lines) <= 8


def test_a_file_gets_no_line_of_what_is_soon_over() -> None:
    clock = Clock()
    with displayed(False, clock) as (display, out):
        for number in range(100):
            clock.seconds = float(number)
            with activity(f"part {number}"):
                display.tick()
        clock.seconds += 60
        display.tick()
    assert out.getvalue() == ""


def test_what_surrounds_an_activity_is_shown_again_behind_it() -> None:
    clock = Clock()
    with displayed(False, clock) as (display, out), activity("planning", 9) as planned:
        planned(4)
        with activity("timing copies"):
            clock.seconds += 6
            display.tick()
        clock.seconds += 6
        display.tick()
    assert out.getvalue().splitlines() == ["timing copies, 0:06", "planning: 4 of 9, 0:06"]


def test_a_terminal_says_at_once_that_something_is_begun_and_then_what() -> None:
    clock = Clock()
    with displayed(True, clock) as (display, out):
        clock.seconds += 1
        display.tick()
        assert "starting, 0:01" in out.getvalue()
        with activity("compiling \x1b[2J52 functions"):
            clock.seconds += 1
            display.tick()
        said = out.getvalue()
        assert "compiling \\u001b[2J52 functions, 0:01" in said
        clock.seconds += 60
        display.tick()
        assert "starting" not in out.getvalue()[len(said) :]


def test_a_line_that_is_printed_beside_erases_the_panel() -> None:
    clock = Clock()
    with displayed(True, clock) as (display, out), activity("compiling"):
        clock.seconds += 1
        display.tick()
        with display.aside():
            erased = out.getvalue()
        assert erased.endswith("\x1b[2K")
        display.tick()
        assert "compiling" in out.getvalue()[len(erased) :]
