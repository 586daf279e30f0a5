"""Keep the time of a session, and charge it to the tasks that it was spent on. Start at `SessionClock`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tuner.measure.runner import Runner
from tuner.session.task import TaskState
from tuning_db.record import DeviceKey
from tuning_db.store import Store
from tuning_db.tuning_time import TuningTime, add_tuning_time


class SessionClock:
    """The wall time of a session, without its pauses. What passes is charged to one task after the other, as tuning
    time on `device` in the store. `now` returns seconds. `runner` tells what it has spent on building and running."""

    def __init__(self, now: Callable[[], float], runner: Runner, store: Store, device: DeviceKey) -> None:
        self._now, self._runner, self._store, self._device = now, runner, store, device
        self._started = self._charged = now()
        self._spent = replace(runner.spent)

    @property
    def elapsed(self) -> float:
        """Return the seconds since the session began, without its pauses."""
        return self._now() - self._started

    def leave_out(self, wait: Callable[[], None]) -> None:
        """Call `wait`. The time that it takes does not count, and is charged to no task."""
        began = self._now()
        wait()
        waited = self._now() - began
        self._started, self._charged = self._started + waited, self._charged + waited

    def charge(self, state: TaskState) -> None:
        """Add the time since the last charge to the task's tuning time."""
        now, spent = self._now(), replace(self._runner.spent)
        build, run = spent.build_seconds - self._spent.build_seconds, spent.run_seconds - self._spent.run_seconds
        add_tuning_time(self._store, {state.task.workload: TuningTime(now - self._charged, build, run)}, self._device)
        self._charged, self._spent = now, spent

    def mark_met(self, states: Iterable[TaskState]) -> None:
        """Note that a session has met these tasks, so that they do not bring a share of the budget again."""
        add_tuning_time(self._store, {s.task.workload: TuningTime() for s in states}, self._device)
