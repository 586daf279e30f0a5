"""Record what a session measures: in the journal what is begun, in the store every trial. Start at `Recorder`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from tuner.session.journal import journalled, release
from tuner.session.options import TuneOptions
from tuner.session.report import Phase
from tuner.session.reporter import Reporter
from tuner.session.sharing import Sharing
from tuner.session.task import TaskState
from tuning_db.record import Config, DeviceKey, Trial
from tuning_db.store import Store
from tuning_db.trial_flags import mark_throttled


class Recorder:
    """The hand that writes a session's trials on `device` to the store, and tells the session's other parts of them:
    the tasks, `sharing` and `reporter`. Every method raises DatabaseError if the store cannot be written."""

    def __init__(
        self, store: Store, device: DeviceKey, sharing: Sharing, reporter: Reporter, options: TuneOptions
    ) -> None:
        self._store, self._device, self._sharing, self._reporter = store, device, sharing, reporter
        self._options = options
        self._states = {s.task.workload: s for s in reporter.states}

    def begin(self, state: TaskState, configs: Sequence[Config], *, again: bool) -> None:
        """Note in the journal that these configs of a task are measured next. `again` says that they may have killed a
        session before."""
        self._store.begin(state.task.workload, self._device, configs, again=again)
        state.pending |= {c.key: c for c in configs}

    def release_pending(self) -> None:
        """Take back the candidates that were begun and will not be measured, because the time is up or an interrupt
        came."""
        for state in self._states.values():
            if state.pending:
                release(self._store, self._device, state.task.workload, list(state.pending.values()))
                state.pending.clear()

    def journalled(self, state: TaskState, configs: Sequence[Config]) -> AbstractContextManager[None]:
        """Return a block in which these configs of a task, which ran before, are in the journal."""
        return journalled(self._store, self._device, state.task.workload, configs)

    def record(self, measured: list[Trial], phase: Phase) -> None:
        """Commit the trials together, and empty the list."""
        trials = [self._own(t) for t in measured]
        measured.clear()  # whatever happens, they are not committed again
        new = self._store.add_together(trials) if trials else []
        for trial, is_new in zip(trials, new, strict=True):
            state = self._states[trial.workload]
            if is_new:
                self._sharing.recorded(state)
            state.add(trial)
            if phase == "search":
                state.unobserved.append(trial)
        self._reporter.show([(self._states[t.workload], t) for t in trials], phase)

    def mark_disturbed(self, trials: Iterable[Trial]) -> None:
        """Mark the trials, which were measured while the device changed its speed."""
        for trial in trials:
            recorded, state = self._own(trial), self._states.get(trial.workload)
            # Any other trial is another session's, or came too late.
            if state is not None and recorded in state.trials.recorded:
                state.trials.replace(recorded, mark_throttled(self._store, recorded, "drift"))

    def _own(self, trial: Trial) -> Trial:
        """Return the trial as this session records it."""
        return replace(trial, seed=self._options.seed, searcher=self._options.searcher)
