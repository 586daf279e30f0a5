"""Report on a session: on every trial as it goes on, and on all of it at the end. Start at `Reporter`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tuner.activity import Meter
from tuner.errors import NothingMeasured
from tuner.session.clock import SessionClock
from tuner.session.options import TuneOptions
from tuner.session.report import Phase, Progress, SessionReport, Stopped, finite, gflops_of, task_report
from tuner.session.session_budget import SessionBudget
from tuner.session.task import TaskState
from tuning_db.record import DeviceKey, Trial


class Reporter:
    """The maker of a session's reports. `states` are all of its tasks, also those without a template. Progress goes to
    the options' function and to `meter`. It counts the session's failures, which nothing else needs."""

    def __init__(
        self,
        states: Sequence[TaskState],
        device: DeviceKey,
        budget: SessionBudget,
        clock: SessionClock,
        options: TuneOptions,
        meter: Meter,
    ) -> None:
        self.states = states
        self._device, self._budget, self._clock, self._options = device, budget, clock, options
        self._meter = meter
        self._failures = Counter[str]()

    def show(self, trials: Sequence[tuple[TaskState, Trial]], phase: Phase) -> None:
        """Report the progress after each of these trials, which were recorded together."""
        self._failures.update(str(trial.failure.kind) for _, trial in trials if trial.failure is not None)
        for state, trial in trials:
            progress = self._progress(state, trial, phase)
            self._meter(progress.session_trials, progress)
            if self._options.progress is not None:
                self._options.progress(progress)

    def _progress(self, state: TaskState, trial: Trial, phase: Phase) -> Progress:
        elapsed, new = self._clock.elapsed, sum(s.new_trials for s in self._budget.tasks)
        rate = new / elapsed if elapsed > 0 else 0.0
        measured = [s for s in self.states if finite(s.trials.best_seconds) is not None]
        return Progress(
            phase=phase,
            task=state.task,
            index=self.states.index(state),
            tasks=len(self.states),
            trials=state.trials.tried,
            best_seconds=finite(state.trials.best_seconds),
            gflops=gflops_of(state),
            config=trial.config,
            last=trial,
            failures=dict(self._failures),
            session_trials=new,
            trials_per_second=rate,
            seconds_left=self._budget.seconds_left(rate),
            elapsed=elapsed,
            measured=len(measured),
            first_total=sum(s.task.occurrences * s.trials.first_seconds for s in measured),
            best_total=sum(s.task.occurrences * s.trials.best_seconds for s in measured),
        )

    def report(self, stopped: Stopped, remarks: Iterable[str]) -> SessionReport:
        """Return the report at the end. Raises NothingMeasured if no task has a time, unless the session was
        interrupted."""
        report = SessionReport(
            device=self._device,
            searcher=self._options.searcher,
            seed=self._options.seed,
            tasks=tuple(map(task_report, self.states)),
            failures=dict(self._failures),
            seconds=self._clock.elapsed,
            stopped=stopped,
            remarks=tuple(remarks),
        )
        nothing = self.states and len(report.unmeasured) == len(self.states)
        if nothing and stopped is not Stopped.INTERRUPTED:
            first = report.unmeasured[0]
            raise NothingMeasured(
                f"nothing could be measured ({report.trials} candidates); {first.name}: {first.reason}"
            )
        return report
