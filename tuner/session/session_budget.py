"""Tell what is left of a session's budget while it goes on. Start at `SessionBudget`."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.session.budget import FLOOR, Budget, allowance
from tuner.session.clock import SessionClock
from tuner.session.report import finite
from tuner.session.task import TaskState
from tuning_db.record import DeviceKey
from tuning_db.store import Store
from tuning_db.tuning_time import tuning_times_of

# This many configs are enough to keep a few cores building at a time. On recorded spaces without seeds, a search that
# sees its trials after every 8 needs a fifth fewer of them than one that sees them after every 16. Batches of 4 are no
# better.
BATCH = 8


class SessionBudget:
    """What a session may still do with its `tasks`, which are those that can be tuned. That is its part of the budget,
    less what the tasks and the clock have used up since."""

    def __init__(
        self, budget: Budget, tasks: Sequence[TaskState], clock: SessionClock, store: Store, device: DeviceKey
    ) -> None:
        self.tasks = tasks
        self._clock, self._preset = clock, budget.per_task
        spent = tuning_times_of(store, [s.task.workload for s in tasks], device)
        new = sum(s.task.workload not in spent and not s.trials.tried for s in tasks)
        self._tried_before = sum(s.trials.tried for s in tasks)
        seconds = sum(e.seconds for e in spent.values())
        self._allowance = allowance(budget, self._tried_before, seconds, tasks=len(tasks), new_tasks=new)

    @property
    def trials_left(self) -> float:
        """Return the trials left in the budget; trials of concurrent sessions count."""
        return self._allowance.trials - (sum(s.begun for s in self.tasks) - self._tried_before)

    @property
    def search_is_over(self) -> bool:
        """Return whether the time for searching is up, of which a reserve for the comparisons is taken off."""
        return self._clock.elapsed >= self._allowance.search_seconds

    @property
    def is_over(self) -> bool:
        """Return whether all time is up."""
        return self._clock.elapsed >= self._allowance.seconds

    def is_open(self, state: TaskState) -> bool:
        """Return whether there is anything left to search for this task."""
        return state.is_open(self._preset)

    def open_tasks(self) -> list[TaskState]:
        """Return the tasks that there is anything left to search for."""
        return [s for s in self.tasks if self.is_open(s)]

    def batch_size(self, state: TaskState, width: int) -> int:
        """Return how many configs of the task to measure next, if `width` are measured at a time."""
        # A batch is at least half of what is measured at a time: a search that went on for each single trial would take
        # a core for itself.
        size = min(max(BATCH, width // 2), self.trials_left)
        if self._preset.trials is not None:
            size = min(size, self._preset.trials - state.begun)
        if state.below_floor:
            size = min(size, FLOOR - state.begun)
        return int(size)

    def seconds_left(self, rate: float) -> float | None:
        """Return an upper bound of the seconds left: by the time budget, and by the trials that are left at the rate so
        far, in trials per second."""
        trials = self.trials_left
        if self._preset.trials is not None:
            trials = min(trials, sum(self._preset.trials - s.trials.tried for s in self.open_tasks()))
        by_trials = trials / rate if rate > 0 else float("inf")
        return finite(max(0.0, min(self._allowance.seconds - self._clock.elapsed, by_trials)))
