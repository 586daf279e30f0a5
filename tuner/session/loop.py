"""Search, measure and record until the budget is used up or nothing is left to gain, then compare the best configs.
Start at `tune`.

Every trial is committed as soon as it is known. A session keeps nothing of its own: a later one derives what it needs
from the recorded trials and from the tuning time of each task (tuning_db.tuning_time).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from templates.template import search_space
from tuner.activity import Meter, activity
from tuner.devices import Device
from tuner.measure.runner import Candidate, Runner
from tuner.session.clock import SessionClock
from tuner.session.comparison import Comparison
from tuner.session.experience import TransferData
from tuner.session.gain import most_promising
from tuner.session.journal import release_dead
from tuner.session.options import TuneOptions
from tuner.session.proposing import Proposer
from tuner.session.recorder import Recorder
from tuner.session.report import SessionReport, Stopped, finite
from tuner.session.reporter import Reporter
from tuner.session.session import Session
from tuner.session.session_budget import SessionBudget
from tuner.session.sharing import Sharing
from tuner.session.task import TaskState
from tuner.session.task_trials import is_current
from tuner.tasks import Task
from tuning_db.record import Config, Trial
from tuning_db.store import Store

_log = logging.getLogger(__name__)

# At most this many trials are committed together.
TOGETHER = 32


def tune(
    tasks: Sequence[Task], device: Device, store: Store, runner: Runner, options: TuneOptions | None = None
) -> SessionReport:
    """Tune the tasks on the device within the budget of the options, going on from what the store has.

    Sessions that tune for the same device in the same database share the tasks between them. `runner` measures on
    `device`. An interrupt (KeyboardInterrupt) ends the session: the report says so, and all that was measured is in the
    store.

    Raises NothingMeasured if no task has a time at the end, and DatabaseError if the store cannot be written. Raises
    ValueError if two tasks have the same workload.
    """
    if len({t.workload for t in tasks}) < len(tasks):
        raise ValueError("two tasks have the same workload: make one of them, with the sum of their occurrences")
    with activity("tuning") as meter:
        session = _composed(tasks, device, store, runner, options or TuneOptions(), meter)
        search, comparison = _Search(session), Comparison(session)
        try:
            with session.sharing:
                stopped = search.run()
                session.clock.mark_met(session.budget.tasks)  # not after an interrupt: some were not come to
                comparison.run()
        except KeyboardInterrupt:
            stopped = Stopped.INTERRUPTED
    ours = (*session.proposer.remarks(), *comparison.remarks(), *session.sharing.remarks())
    return session.reporter.report(stopped, (*ours, *runner.remarks()))


def _composed(
    tasks: Sequence[Task], device: Device, store: Store, runner: Runner, options: TuneOptions, meter: Meter
) -> Session:
    """Return a session that begins now."""
    clock = SessionClock(options.clock, runner, store, device.key)
    with activity(f"making the spaces of {len(tasks)} tasks"):
        states = _states(tasks, device, store, options)
    tunable = [s for s in states if s.space is not None]
    sharing = Sharing(store, device.key, tunable, lease_seconds=options.lease_seconds, notice=options.notice)
    budget = SessionBudget(options.budget, tunable, clock, store, device.key)
    reporter = Reporter(states, device.key, budget, clock, options, meter)
    return Session(
        runner=runner,
        clock=clock,
        budget=budget,
        sharing=sharing,
        proposer=_proposer(tunable, device, store, options),
        recorder=Recorder(store, device.key, sharing, reporter, options),
        reporter=reporter,
    )


def _states(tasks: Sequence[Task], device: Device, store: Store, options: TuneOptions) -> list[TaskState]:
    """Return the state of every task when the session begins."""
    dead = release_dead(store, device.key, not device.kind.is_remote)

    def state_of(task: Task) -> TaskState:
        space = search_space(task.workload, device.target, options.only, options.exact)
        templates = {s.template for s in space.spaces} if space else set()
        recorded = [t for t in store.trials(task.workload, device.key) if is_current(t, templates)]
        suspects = [c for c in dead.get(task.workload, ()) if c.template in templates]
        return TaskState(task, space, recorded, suspects)

    return [state_of(task) for task in tasks]


def _proposer(states: Sequence[TaskState], device: Device, store: Store, options: TuneOptions) -> Proposer:
    ops = {s.task.workload.op for s in states}
    library = TransferData(
        store, device.key, ops, lambda w: search_space(w, device.target, options.only, options.exact)
    )
    return Proposer(states, library, device.target, searcher=options.searcher, seed=options.seed, make=options.make)


class _Search:
    """The search loop of a session, which goes on batch by batch."""

    def __init__(self, session: Session) -> None:
        self._runner, self._sharing, self._budget = session.runner, session.sharing, session.budget
        self._clock, self._proposer, self._recorder = session.clock, session.proposer, session.recorder

    def run(self) -> Stopped:
        """Search until the budget is used up or every task is done, and return which it was."""
        while True:
            self._follow_requests()
            state = self._sharing.hold_one(self._budget.open_tasks(), most_promising)
            self._sharing.catch_up()  # after the claim, to know what the last owner measured
            if self._budget.trials_left <= 0:
                return Stopped.TRIALS
            if self._budget.search_is_over:
                self._charge_rest()
                return Stopped.TIME
            if not self._budget.open_tasks():
                return Stopped.DONE
            if state is None:
                self._sharing.wait()
            elif self._budget.is_open(state):
                self._measure(state)

    def _follow_requests(self) -> None:
        """Follow requests to pause or skip. The time of a pause does not count."""
        requests = self._sharing.requests()
        self._sharing.skip(requests.skipped)
        if requests.paused:
            self._clock.leave_out(self._sharing.wait_for_resume)

    def _measure(self, first: TaskState) -> None:
        """Measure and record a batch of the task. If the runner measures many candidates at a time, batches of this and
        of other tasks follow one another until the runner has to be empty."""
        known: list[Trial] = []
        best = finite(first.trials.best_seconds)
        try:
            with _closing(self._runner.measure(self._candidates(first), best)) as measured:
                for trial in measured:
                    known.append(trial)
                    if not self._runner.ready or len(known) == TOGETHER:  # one commit for all that have ended
                        self._recorder.record(known, "search")
                    if self._budget.search_is_over:
                        break
        finally:
            self._recorder.record(known, "search")
            self._settle(first)
            self._recorder.release_pending()
        _log_best(first)
        for state in self._budget.tasks:
            self._proposer.observe(state)

    def _settle(self, state: TaskState) -> None:
        """Mark what was disturbed since the last batch, and charge the time since then to the task."""
        self._recorder.mark_disturbed(self._runner.disturbed())
        self._clock.charge(state)

    def _candidates(self, first: TaskState) -> Iterator[Candidate]:
        """Yield the candidates of a batch, each noted in the journal. If the runner measures many at a time, yield
        another batch when it has room, of the task that promises most by then."""
        state: TaskState | None = first
        while state is not None:
            # A candidate that may have killed a session is measured alone.
            again = bool(state.suspects)
            configs = [state.suspects.pop()] if again else self._next_batch(state)
            if configs:
                self._recorder.begin(state, configs, again=again)
            else:
                state.exhausted = True
            yield from (Candidate(state.task.workload, c) for c in configs)
            state = self._next_task(state) if self._runner.width > 1 else None

    def _next_batch(self, state: TaskState) -> list[Config]:
        """Return the configs of a task to measure next, or none where its space is exhausted."""
        return self._proposer.batch(state, self._budget.batch_size(state, self._runner.width))

    def _next_task(self, last: TaskState) -> TaskState | None:
        """Return the task whose batch is next while others are measured. Return None if what is under way has to end
        first."""
        self._settle(last)
        if self._budget.trials_left <= 0 or self._budget.search_is_over:
            return None
        requests = self._sharing.requests()
        self._sharing.skip(requests.skipped)
        if requests.paused:
            return None
        state = self._sharing.hold_one(self._budget.open_tasks(), most_promising)
        self._sharing.catch_up()
        return state if state is not None and self._budget.is_open(state) else None

    def _charge_rest(self) -> None:
        """Charge the moments since the last trial too, or the next session would find them left over."""
        measured = [s for s in self._budget.tasks if s.new_trials]
        if measured:
            self._clock.charge(measured[0])


def _log_best(state: TaskState) -> None:
    seconds = state.trials.best_seconds
    best = f"{seconds * 1e6:.1f} us" if math.isfinite(seconds) else "none"
    _log.info("%s: %d configs tried, best %s", state.task.name or state.task.workload.op, state.trials.tried, best)


@contextmanager
def _closing(trials: Iterator[Trial]) -> Generator[Iterator[Trial], None, None]:
    """End what is under way behind the iterator, if it was left early."""
    try:
        yield trials
    finally:
        if isinstance(trials, Generator):
            trials.close()
