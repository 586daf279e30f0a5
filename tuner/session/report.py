"""What a session tells: `Progress` after every trial, `SessionReport` at the end. Nothing is printed here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from tuner.session.task import TaskState
from tuner.tasks import Task
from tuning_db.record import Config, DeviceKey, Trial, Workload


class Stopped(StrEnum):
    """Why a session ended."""

    DONE = "done"  # every task is: nothing left to gain
    TRIALS = "trials"  # the budget of trials is used up
    TIME = "time"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Progress:
    """The state of a session after a trial.

    `index`: of the task, from 0, among `tasks`; `trials`/`best_seconds`/`gflops`: of that task, in all sessions (None
    until something ran, or where the operations are not known); `failures`: of the session, by kind; `session_trials`:
    in this session, all tasks; `seconds_left`: at most, None if nobody knows.
    """

    phase: Literal["search", "compare"]
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


@dataclass(frozen=True)
class TaskReport:
    """One task after a session. None stands for times that were never measured.

    `new_trials`/`trials`: different configs tried, in this session and in all; `first_seconds`: of the first config
    that ran (a seed), the "before" of tuning; `best_error`: of the best, relative to the largest value of the float64
    reference; `confirmed`: the best has been measured against its rivals; `reason`: why there is no best.
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
        """For JSON."""
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
    """A session. `seconds`: wall time; `failures`: by kind, of this session, as are the trials per second; `remarks`:
    what a person should know of it, a line each; `spent`: wall seconds by what they went to ("build", "run"), where the
    runner tells; the rest is the tuner's own."""

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
        """Configs that this session has measured."""
        return sum(t.new_trials for t in self.tasks)

    @property
    def trials(self) -> int:
        """With those that the database had before."""
        return sum(t.trials for t in self.tasks)

    @property
    def trials_per_second(self) -> float:
        """Of this session's wall time; 0 where it took none."""
        return self.new_trials / self.seconds if self.seconds > 0 else 0.0

    @property
    def unmeasured(self) -> tuple[TaskReport, ...]:
        """Tasks without any time: they are built with the default schedule."""
        return tuple(t for t in self.tasks if t.best_seconds is None)

    def _total(self, seconds: list[float | None]) -> float | None:
        pairs = list(zip(self.tasks, seconds, strict=True))
        return None if any(s is None for _, s in pairs) else sum(t.occurrences * s for t, s in pairs if s is not None)

    @property
    def first_seconds(self) -> float | None:
        """Of all tasks times their occurrences, before tuning; None if a task has no time."""
        return self._total([t.first_seconds for t in self.tasks])

    @property
    def best_seconds(self) -> float | None:
        """The same after tuning."""
        return self._total([t.best_seconds for t in self.tasks])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """Seconds, None where nothing was measured."""
    return seconds if math.isfinite(seconds) else None


def gflops_of(state: TaskState) -> float | None:
    """10^9 operations of the direct algorithm per second, by the best config."""
    flop, best = state.task.flop, finite(state.best_seconds)
    return None if flop is None or best is None else flop / best / 1e9


def task_report(state: TaskState) -> TaskReport:
    """What there is to say of a task, as it stands."""
    standing = state.standing()
    reason = None
    if state.space is None:
        reason = "no template applies"
    elif not standing:
        reason = state.first_error() or "not tried"
    return TaskReport(
        name=state.task.name,
        workload=state.task.workload,
        occurrences=state.task.occurrences,
        new_trials=state.tried - state.known,
        trials=state.tried,
        first_seconds=finite(state.first_seconds),
        best_seconds=finite(state.best_seconds),
        best_config=standing[0].config if standing else None,
        best_error=standing[0].error if standing else None,
        gflops=gflops_of(state),
        confirmed=bool(standing) and state.is_confirmed(standing[0].config),
        failures=state.failures(),
        reason=reason,
    )
