"""Search, measure and record until the budget is used up or nothing is left to gain, then compare the best configs.
Start at `tune`.

Every trial is committed as soon as it is known. A session keeps nothing of its own: a later one derives what it needs
from the recorded trials and from the tuning time of each task (tuning_db.tuning_time).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from templates.template import search_space, template_named
from tuner.devices import Device
from tuner.errors import BadInput, NothingMeasured
from tuner.measure.runner import Candidate, Runner
from tuner.search import DEFAULT, check_searcher, make_searcher
from tuner.session.budget import FLOOR, Allowance, Budget, allowance
from tuner.session.experience import TransferData
from tuner.session.final import finalists
from tuner.session.gain import most_promising
from tuner.session.journal import journalled, release, release_dead
from tuner.session.proposing import Making, Proposer
from tuner.session.report import Progress, SessionReport, Stopped, finite, gflops_of, task_report
from tuner.session.sharing import LEASE_SECONDS, Sharing
from tuner.session.task import TaskState, is_current
from tuner.tasks import Task
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import Store
from tuning_db.trial_flags import mark_throttled
from tuning_db.tuning_time import TuningTime, add_tuning_time, tuning_times_of

_log = logging.getLogger(__name__)

# This many configs are enough to keep a few cores building at a time. On recorded spaces without seeds, a search that
# sees its trials after every 8 needs a fifth fewer of them than one that sees them after every 16. Batches of 4 are no
# better.
BATCH = 8
# At most this many trials are committed together.
TOGETHER = 32


def tune(
    tasks: Sequence[Task],
    device: Device,
    store: Store,
    runner: Runner,
    *,
    searcher: str = DEFAULT,
    budget: Budget | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    exact: bool = False,
    only: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    lease_seconds: float = LEASE_SECONDS,
    notice: Callable[[str], None] | None = None,
    make: Making = make_searcher,
) -> SessionReport:
    """Tune the tasks on the device within the budget (see tuner.session.budget), going on from what the store has.

    Sessions that tune for the same device in the same database share the tasks between them (for `lease_seconds` and
    `notice` see tuner.session.sharing.Sharing).

    `runner` measures on `device`. `progress` is called after every trial. `exact` forbids templates that round
    differently from the direct algorithm. `only` names the templates that may be used. `clock` returns seconds. `make`
    makes searchers. An interrupt (KeyboardInterrupt) ends the session: the report says so, and all that was measured is
    in the store.

    Raises BadInput for an unknown searcher or template, NothingMeasured if no task has a time at the end, and
    DatabaseError if the store cannot be written. Raises ValueError if two tasks have the same workload.
    """

    def share(states: Sequence[TaskState]) -> Sharing:
        return Sharing(store, device.key, states, lease_seconds=lease_seconds, notice=notice)

    budget = budget or Budget()
    session = _Session(
        tasks,
        device,
        store,
        runner=runner,
        searcher=searcher,
        budget=budget,
        seed=seed,
        progress=progress,
        exact=exact,
        only=only,
        clock=clock,
        share=share,
        make=make,
    )
    return session.run()


class _Session:
    def __init__(
        self,
        tasks: Sequence[Task],
        device: Device,
        store: Store,
        *,
        runner: Runner,
        searcher: str,
        budget: Budget,
        seed: int,
        progress: Callable[[Progress], None] | None,
        exact: bool,
        only: Sequence[str] | None,
        clock: Callable[[], float],
        share: Callable[[Sequence[TaskState]], Sharing],
        make: Making,
    ) -> None:
        _check_names(searcher, only)
        if len({t.workload for t in tasks}) < len(tasks):
            raise ValueError("two tasks have the same workload: make one of them, with the sum of their occurrences")
        self._device, self._store, self._runner = device, store, runner
        self._searcher, self._seed = searcher, seed
        self._progress, self._clock = progress, clock
        self._started = self._charged = clock()
        self._spent = replace(runner.spent)
        self._failures: Counter[str] = Counter()
        self._preset = budget.per_task
        suspects = release_dead(store, device.key, not device.kind.is_remote)
        self._states = [self._state(t, only, exact, suspects.get(t.workload, ())) for t in tasks]
        self._tunable = [s for s in self._states if s.space is not None]
        self._sharing = share(self._tunable)
        self._left = self._allowance(budget)
        self._tried_before = sum(s.tried for s in self._tunable)
        ops = {s.task.workload.op for s in self._tunable}
        library = TransferData(store, device.key, ops, lambda w: search_space(w, device.target, only, exact))
        self._proposer = Proposer(self._tunable, library, device.target, searcher=searcher, seed=seed, make=make)

    def _state(self, task: Task, only: Sequence[str] | None, exact: bool, suspects: Sequence[Config]) -> TaskState:
        space = search_space(task.workload, self._device.target, only, exact)
        templates = {s.template for s in space.spaces} if space else set()
        recorded = self._store.trials(task.workload, self._device.key)
        again = [c for c in suspects if c.template in templates]
        return TaskState(task, space, [t for t in recorded if is_current(t, templates)], suspects=again)

    def _allowance(self, budget: Budget) -> Allowance:
        spent = tuning_times_of(self._store, [s.task.workload for s in self._tunable], self._device.key)
        new = sum(s.task.workload not in spent and not s.tried for s in self._tunable)
        tried = sum(s.tried for s in self._tunable)
        return allowance(budget, tried, sum(e.seconds for e in spent.values()), tasks=len(self._tunable), new_tasks=new)

    # The loop

    def run(self) -> SessionReport:
        try:
            with self._sharing:
                stopped = self._search()
                # Now a session has met these tasks, so they do not bring a share of the budget again. After an
                # interrupt, the tasks that the session has not come to still do.
                add_tuning_time(self._store, {s.task.workload: TuningTime() for s in self._tunable}, self._device.key)
                self._compare()
        except KeyboardInterrupt:
            stopped = Stopped.INTERRUPTED
        return self._report(stopped)

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._started

    @property
    def _new_trials(self) -> int:
        return sum(s.tried - s.known for s in self._tunable)

    @property
    def _trials_left(self) -> float:
        """Return the trials left in the budget; trials of concurrent sessions count."""
        return self._left.trials - (sum(s.begun for s in self._tunable) - self._tried_before)

    def _open_tasks(self) -> list[TaskState]:
        return [s for s in self._tunable if s.is_open(self._preset)]

    def _search(self) -> Stopped:
        while True:
            self._follow_requests()
            state = self._sharing.hold_one(self._open_tasks(), most_promising)
            self._sharing.catch_up()  # after the claim, to know what the last owner measured
            if self._trials_left <= 0:
                return Stopped.TRIALS
            if self._elapsed >= self._left.search_seconds:
                self._charge_rest()
                return Stopped.TIME
            if not self._open_tasks():
                return Stopped.DONE
            if state is None:
                self._sharing.wait()
            elif state.is_open(self._preset):
                self._measure(state)

    def _follow_requests(self) -> None:
        """Follow requests to pause or skip. The time of a pause does not count."""
        began = self._clock()
        if self._sharing.heed():
            waited = self._clock() - began
            self._started, self._charged = self._started + waited, self._charged + waited

    def _measure(self, first: TaskState) -> None:
        """Measure and record a batch of the task. If the runner measures many candidates at a time, batches of this and
        of other tasks follow one another until the runner has to be empty."""
        known: list[Trial] = []
        try:
            with _closing(self._runner.measure(self._candidates(first), finite(first.best_seconds))) as measured:
                for trial in measured:
                    known.append(trial)
                    if not self._runner.ready or len(known) == TOGETHER:  # one commit for all that have ended
                        self._record(known, "search")
                    if self._elapsed >= self._left.search_seconds:
                        break
        finally:
            self._record(known, "search")
            self._mark_disturbed()
            self._charge(first)
            self._release()
        best = f"{first.best_seconds * 1e6:.1f} us" if math.isfinite(first.best_seconds) else "none"
        _log.info("%s: %d configs tried, best %s", first.task.name or first.task.workload.op, first.tried, best)
        for state in self._tunable:
            self._proposer.observe(state)

    def _candidates(self, first: TaskState) -> Iterator[Candidate]:
        """Yield the candidates of a batch, each noted in the journal. If the runner measures many at a time, yield
        another batch when it has room, of the task that promises most by then."""
        state: TaskState | None = first
        while state is not None:
            # A candidate that may have killed a session is measured alone.
            again = bool(state.suspects)
            configs = [state.suspects.pop()] if again else self._next_batch(state)
            if configs:
                self._store.begin(state.task.workload, self._device.key, configs, again=again)
                state.pending |= {c.key: c for c in configs}
            else:
                state.exhausted = True
            yield from (Candidate(state.task.workload, c) for c in configs)
            state = self._next_task(state) if self._runner.width > 1 else None

    def _next_task(self, last: TaskState) -> TaskState | None:
        """Return the task whose batch is next while others are measured. Return None if what is under way has to end
        first."""
        self._mark_disturbed()
        self._charge(last)
        used_up = self._trials_left <= 0 or self._elapsed >= self._left.search_seconds
        if used_up or self._sharing.mark_skipped():
            return None
        state = self._sharing.hold_one(self._open_tasks(), most_promising)
        self._sharing.catch_up()
        return state if state is not None and state.is_open(self._preset) else None

    def _next_batch(self, state: TaskState) -> list[Config]:
        """Return the configs of a task to measure next, or none where its space is exhausted."""
        # A batch is at least half of what is measured at a time: a search that went on for each single trial would take
        # a core for itself.
        size = min(max(BATCH, self._runner.width // 2), self._trials_left)
        if self._preset.trials is not None:
            size = min(size, self._preset.trials - state.begun)
        if state.below_floor:
            size = min(size, FLOOR - state.begun)
        return self._proposer.batch(state, int(size))

    def _release(self) -> None:
        """Take back the candidates that were begun and will not be measured, because the time is up or an interrupt
        came."""
        for state in self._tunable:
            if state.pending:
                release(self._store, self._device.key, state.task.workload, list(state.pending.values()))
                state.pending.clear()

    def _state_of(self, workload: Workload) -> TaskState:
        return next(s for s in self._states if s.task.workload == workload)

    def _record(self, measured: list[Trial], phase: Literal["search", "compare"]) -> None:
        """Commit the trials together, and empty the list."""
        trials = [replace(t, seed=self._seed, searcher=self._searcher) for t in measured]
        measured.clear()  # whatever happens, they are not committed again
        new = self._store.add_together(trials) if trials else []
        for trial, is_new in zip(trials, new, strict=True):
            state = self._state_of(trial.workload)
            if is_new:
                self._sharing.recorded(state)
            state.add(trial)
            if phase == "search":
                state.unobserved.append(trial)
            if trial.failure is not None:
                self._failures[str(trial.failure.kind)] += 1
        if self._progress is not None:
            for trial in trials:
                self._progress(self._progress_of(self._state_of(trial.workload), trial, phase))

    def _mark_disturbed(self) -> None:
        """Mark the trials that were measured while the device changed its speed."""
        for trial in self._runner.disturbed():
            recorded = replace(trial, seed=self._seed, searcher=self._searcher)
            state = next((s for s in self._states if s.task.workload == trial.workload), None)
            if state is not None and recorded in state.trials:  # else it is another session's, or came too late
                state.replace(recorded, mark_throttled(self._store, recorded, "drift"))

    def _charge(self, state: TaskState) -> None:
        """Add the time since the last charge to the task's tuning time."""
        now, spent = self._clock(), replace(self._runner.spent)
        build, run = spent.build_seconds - self._spent.build_seconds, spent.run_seconds - self._spent.run_seconds
        add_tuning_time(
            self._store, {state.task.workload: TuningTime(now - self._charged, build, run)}, self._device.key
        )
        self._charged, self._spent = now, spent

    def _charge_rest(self) -> None:
        """Charge the moments since the last trial too, or the next session would find them left over."""
        measured = [s for s in self._tunable if s.tried > s.known]
        if measured:
            self._charge(measured[0])

    # The end

    def _compare(self) -> None:
        """Measure the best few configs of every task against each other, the tasks that take most time first. Stop when
        no task's leader is news for another task, and no task without a time is with another session."""
        weight = {s: s.task.occurrences * (finite(s.best_seconds) or 0.0) for s in self._tunable}
        while True:
            wanted = [s for s in sorted(self._tunable, key=lambda s: -weight[s]) if self._finalists(s)]
            unmeasured = [s for s in self._tunable if finite(s.best_seconds) is None]
            in_time = self._elapsed < self._left.seconds
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
        """Return the configs to compare, or none when the time is up."""
        return finalists(state, self._proposer.advice(state, 1)) if self._elapsed < self._left.seconds else []

    def _compare_once(self, state: TaskState, configs: Sequence[Config]) -> None:
        workload = state.task.workload
        with journalled(self._store, self._device.key, workload, configs):
            trials = self._runner.compare([Candidate(workload, c) for c in configs])
            self._mark_disturbed()
            if any(t.ok for t in trials):
                for trial in trials:
                    self._record([trial], "compare")
            else:  # the comparison failed, not its candidates, which ran before
                state.comparison_failure = str(trials[0].failure and trials[0].failure.message)
        self._charge(state)

    def _all_remarks(self) -> tuple[str, ...]:
        """Return remarks on what failed, on tasks that were skipped, and on trials of other sessions."""
        failed = [
            f"{s.task.name}: the best were not measured against each other: {s.comparison_failure}"
            for s in self._tunable
            if s.comparison_failure is not None
        ]
        skipped = [f"{s.task.name}: skipped, by `tune watch`" for s in self._tunable if s.skipped]
        shared = [f"{n} more trials are other runs', at the same time"] if (n := self._sharing.from_others) else []
        return (*self._proposer.remarks(), *failed, *skipped, *shared)

    def _report(self, stopped: Stopped) -> SessionReport:
        report = SessionReport(
            device=self._device.key,
            searcher=self._searcher,
            seed=self._seed,
            tasks=tuple(map(task_report, self._states)),
            failures=dict(self._failures),
            seconds=self._elapsed,
            stopped=stopped,
            remarks=(*self._all_remarks(), *self._runner.remarks()),
        )
        nothing = self._states and len(report.unmeasured) == len(self._states)
        if nothing and stopped is not Stopped.INTERRUPTED:
            first = report.unmeasured[0]
            raise NothingMeasured(
                f"nothing could be measured ({report.trials} candidates); {first.name}: {first.reason}"
            )
        return report

    def _progress_of(self, state: TaskState, trial: Trial, phase: Literal["search", "compare"]) -> Progress:
        elapsed, new = self._elapsed, self._new_trials
        rate = new / elapsed if elapsed > 0 else 0.0
        return Progress(
            phase=phase,
            task=state.task,
            index=self._states.index(state),
            tasks=len(self._states),
            trials=state.tried,
            best_seconds=finite(state.best_seconds),
            gflops=gflops_of(state),
            config=trial.config,
            last=trial,
            failures=dict(self._failures),
            session_trials=new,
            trials_per_second=rate,
            seconds_left=self._seconds_left(elapsed, rate),
        )

    def _seconds_left(self, elapsed: float, rate: float) -> float | None:
        """Return an upper bound of the seconds left: by the time budget, and by the trials that are left at the rate so
        far."""
        trials = self._trials_left
        if self._preset.trials is not None:
            caps = sum(self._preset.trials - s.tried for s in self._tunable if s.is_open(self._preset))
            trials = min(trials, caps)
        by_trials = trials / rate if rate > 0 else float("inf")
        return finite(max(0.0, min(self._left.seconds - elapsed, by_trials)))


@contextmanager
def _closing(trials: Iterator[Trial]) -> Generator[Iterator[Trial], None, None]:
    """End what is under way behind the iterator, if it was left early."""
    try:
        yield trials
    finally:
        if isinstance(trials, Generator):
            trials.close()


def _check_names(searcher: str, only: Sequence[str] | None) -> None:
    check_searcher(searcher)
    check_templates(only or ())


def check_templates(names: Sequence[str]) -> None:
    """Raise BadInput, with the known names, for a template that is not there."""
    for name in names:
        try:
            template_named(name)
        except KeyError as error:
            raise BadInput(str(error.args[0])) from None
