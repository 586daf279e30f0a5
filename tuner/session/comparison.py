"""Compare the best configs of every task at the end of a session. Start at `Comparison`."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.measure.runner import Candidate
from tuner.session.final import finalists
from tuner.session.report import finite
from tuner.session.session import Session
from tuner.session.task import TaskState
from tuning_db.record import Config


class Comparison:
    """The last part of a session, which measures the best few configs of every task against each other until the time
    is up."""

    def __init__(self, session: Session) -> None:
        self._runner, self._sharing, self._budget = session.runner, session.sharing, session.budget
        self._clock, self._proposer, self._recorder = session.clock, session.proposer, session.recorder
        self._failures: dict[TaskState, str] = {}  # why the comparison of a task failed

    def run(self) -> None:
        """Compare the tasks that take most time first. Stop when no task's leader is news for another task, and no task
        without a time is with another session."""
        tasks = self._budget.tasks
        weight = {s: s.task.occurrences * (finite(s.trials.best_seconds) or 0.0) for s in tasks}
        while True:
            wanted = [s for s in sorted(tasks, key=lambda s: -weight[s]) if self._finalists(s)]
            unmeasured = [s for s in tasks if finite(s.trials.best_seconds) is None]
            in_time = not self._budget.is_over
            if not wanted and not (in_time and self._sharing.with_others(unmeasured)):
                return
            compared = [self._compare_task(s) for s in wanted]
            if not any(compared):
                self._sharing.wait()
                self._sharing.catch_up()

    def _compare_task(self, state: TaskState) -> bool:
        """Compare the finalists of a task. Return False if another session works on the task now."""
        if not self._sharing.hold(state):
            return False
        self._sharing.catch_up()
        while configs := self._finalists(state):
            self._compare_once(state, configs)
        return True

    def _finalists(self, state: TaskState) -> list[Config]:
        """Return the configs to compare. There are none when the time is up, or where a comparison has failed."""
        if self._budget.is_over or state in self._failures:
            return []
        return finalists(state, self._proposer.advice(state, 1))

    def _compare_once(self, state: TaskState, configs: Sequence[Config]) -> None:
        with self._recorder.journalled(state, configs):
            trials = self._runner.compare([Candidate(state.task.workload, c) for c in configs])
            self._recorder.mark_disturbed(self._runner.disturbed())
            if any(t.ok for t in trials):
                for trial in trials:
                    self._recorder.record([trial], "compare")
            else:  # the comparison failed, not its candidates, which ran before
                self._failures[state] = str(trials[0].failure and trials[0].failure.message)
        self._clock.charge(state)

    def remarks(self) -> list[str]:
        """Return a line for every task whose comparison failed."""
        return [
            f"{s.task.name}: the best were not measured against each other: {self._failures[s]}"
            for s in self._budget.tasks
            if s in self._failures
        ]
