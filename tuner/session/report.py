"""Define what a session reports: `Progress` after every trial, and `SessionReport` at the end. Nothing is printed
here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from tuner.session.task import TaskState
from tuner.tasks import Task
from tuning_db.record import Config, DeviceKey, Trial, Workload

Phase = Literal["search", "compare"]


class Stopped(StrEnum):
    """An enumeration of the reasons that end a session."""

    DONE = "done"  # every task is done: there is nothing left to gain
    TRIALS = "trials"  # the budget of trials is used up
    TIME = "time"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Progress:
    """The state that a session is in after a trial.

    `index` is the position of the task among all `tasks`, from 0. `trials`, `best_seconds` and `gflops` are those of
    the task, in all sessions. The last two are None until something ran; `gflops` is None as well where the operations
    are not known. `failures` counts the session's failures by kind. `session_trials` counts this session's trials of
    all tasks. `seconds_left` is an upper bound, or None where none is known. `elapsed` is this session's seconds.
    `measured` counts the tasks that have a time; `first_total` and `best_total` are the seconds that they take in an
    inference together, with their first and with their best configs.
    """

    phase: Phase
    task: Task
    index: int
    tasks: int
    trials: int
    best_seconds: float | None
    gflops: float | None
    config: Config
    last: Trial
    failures: Mapping[str, int]
    session_trials: int
    trials_per_second: float
    seconds_left: float | None
    elapsed: float
    measured: int
    first_total: float
    best_total: float


@dataclass(frozen=True)
class TaskReport:
    """The state that a task is in after a session. None stands for times that were never measured.

    `new_trials` and `trials` count the different configs that were tried, in this session and in all. `first_seconds`
    is the time of the first config that ran (a seed), the "before" of tuning. `best_error` is that of the best config,
    relative to the largest value of the float64 reference. `confirmed` says that the best config has been measured
    against its rivals. `reason` says why there is no best config.
    """

    name: str
    workload: Workload
    occurrences: int
    new_trials: int
    trials: int
    first_seconds: float | None
    best_seconds: float | None
    best_config: Config | None
    best_error: float | None
    gflops: float | None
    confirmed: bool
    failures: Mapping[str, int]
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {
            "name": self.name,
            "workload": self.workload.as_dict(),
            "occurrences": self.occurrences,
            "new_trials": self.new_trials,
            "trials": self.trials,
            "first_seconds": self.first_seconds,
            "best_seconds": self.best_seconds,
            "best_config": None if self.best_config is None else self.best_config.as_dict(),
            "best_error": self.best_error,
            "gflops": self.gflops,
            "confirmed": self.confirmed,
            "failures": dict(self.failures),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class SessionReport:
    """The results that a session ends with.

    `seconds` is wall time. `failures` counts this session's failures by kind, and the trials per second are this
    session's, too. `remarks` holds what a person should know of the session, a line each. `spent` maps "build" and
    "run" to the wall seconds that they took, where the runner tells; the rest is the tuner's own.
    """

    device: DeviceKey
    searcher: str
    seed: int
    tasks: tuple[TaskReport, ...]
    failures: Mapping[str, int]
    seconds: float
    stopped: Stopped
    remarks: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def new_trials(self) -> int:
        """Return the number of configs that this session has measured."""
        return sum(t.new_trials for t in self.tasks)

    @property
    def trials(self) -> int:
        """Return the number of configs measured, including those that the database had before."""
        return sum(t.trials for t in self.tasks)

    @property
    def trials_per_second(self) -> float:
        """Return the new trials per second of this session's wall time, or 0 where it took none."""
        return self.new_trials / self.seconds if self.seconds > 0 else 0.0

    @property
    def unmeasured(self) -> tuple[TaskReport, ...]:
        """Return the tasks without any time, which are built with the default schedule."""
        return tuple(t for t in self.tasks if t.best_seconds is None)

    def _total(self, seconds: list[float | None]) -> float | None:
        pairs = list(zip(self.tasks, seconds, strict=True))
        return None if any(s is None for _, s in pairs) else sum(t.occurrences * s for t, s in pairs if s is not None)

    @property
    def first_seconds(self) -> float | None:
        """Return the seconds of all tasks times their occurrences, before tuning. Return None if a task has no time."""
        return self._total([t.first_seconds for t in self.tasks])

    @property
    def best_seconds(self) -> float | None:
        """Return the seconds of all tasks times their occurrences, after tuning. Return None if a task has no time."""
        return self._total([t.best_seconds for t in self.tasks])

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {
            "device": self.device.as_dict(),
            "searcher": self.searcher,
            "seed": self.seed,
            "new_trials": self.new_trials,
            "trials": self.trials,
            "trials_per_second": self.trials_per_second,
            "failures": dict(self.failures),
            "seconds": self.seconds,
            "stopped": str(self.stopped),
            "remarks": list(self.remarks),
            "spent": dict(self.spent),
            "first_seconds": self.first_seconds,
            "best_seconds": self.best_seconds,
            "unmeasured": [t.name for t in self.unmeasured],
            "tasks": [t.as_dict() for t in self.tasks],
        }


def finite(seconds: float) -> float | None:
    """Return `seconds`, or None where they are infinite because nothing was measured."""
    return seconds if math.isfinite(seconds) else None


def gflops_of(state: TaskState) -> float | None:
    """Return the speed of the best config in 10^9 operations of the direct algorithm per second. Return None where the
    time or the number of operations is not known."""
    flop, best = state.task.flop, finite(state.trials.best_seconds)
    return None if flop is None or best is None else flop / best / 1e9


def task_report(state: TaskState) -> TaskReport:
    """Return a report of a task as it stands."""
    standing = state.trials.standing()
    reason = None
    if state.space is None:
        reason = "no template applies"
    elif not standing:
        reason = state.trials.first_error() or "not tried"
    return TaskReport(
        name=state.task.name,
        workload=state.task.workload,
        occurrences=state.task.occurrences,
        new_trials=state.new_trials,
        trials=state.trials.tried,
        first_seconds=finite(state.trials.first_seconds),
        best_seconds=finite(state.trials.best_seconds),
        best_config=standing[0].config if standing else None,
        best_error=standing[0].error if standing else None,
        gflops=gflops_of(state),
        confirmed=bool(standing) and state.trials.is_confirmed(standing[0].config),
        failures=state.trials.failures(),
        reason=reason,
    )
