"""What a session shows while it goes on: the task at work, the whole network's time, and how much is left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from templates.workloads import Conv2d
from tests.tuning_db.made import trial
from tuner.cli.progress import ProgressDisplay
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


def shown(what: Progress, terminal: bool) -> str:
    out = io.StringIO()
    with ProgressDisplay(Console(file=out, width=80 if terminal else 140, force_terminal=terminal)) as display:
        display.show(what)
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
