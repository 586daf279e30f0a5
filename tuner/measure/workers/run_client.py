"""`MeasureClient` is the tuner's side of the measuring worker: it enforces deadlines and replaces the worker after a
crash."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tuner.devices import kind_of
from tuner.devices.board import Standing
from tuner.errors import BadInput, DeviceLost, TurnOver
from tuner.measure.failures import was_killed
from tuner.measure.messages import (
    CompareDone,
    CompareJob,
    ExecutorSettings,
    Lost,
    Prepare,
    Prepared,
    RunDone,
    RunJob,
    Speed,
    Waiting,
)
from tuner.measure.targets.drift import Drift, Interval
from tuner.measure.workers.worker import ProcessServer, Worker
from tuning_db.record import Failure, FailureKind, Workload

_ENTRY = "tuner.measure.workers.run_main:main"
_START_SECONDS = 60.0
_PREPARE_SECONDS = 120.0  # making a workload's operands and its float64 reference, for which no candidate is to blame
_RECYCLE_JOBS = 1000
_SUSPECT = (FailureKind.RUN, FailureKind.WRONG_ANSWER)


class _Lost(Exception):
    """The worker died, or was killed at its deadline; the text says which."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.failure = Failure(kind, text)


class MeasureClient:
    """Runs built candidates one at a time in a worker that may die of them. `waits` is called while others measure on a
    board. `drift` tells whether the device keeps its speed. `width` is how many candidates run at a time."""

    width = 1

    def __init__(
        self,
        server: ProcessServer,
        settings: ExecutorSettings,
        run_seconds: float,
        *,
        waits: Callable[[Standing], object] = lambda _: None,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._server = server
        self._settings = settings
        self._waits = waits
        self._kind = kind_of(settings.device)
        self.drift = Drift(self._kind.called(settings.device), notice)
        self._run_seconds = run_seconds
        self._worker: Worker | None = None
        self._used = False  # the worker ran a candidate, which may have broken something

    def start(self) -> Worker:
        """Return the worker, which is started if there is none. On a board that others measure on, it starts when its
        turn comes. If somebody kills it meanwhile, it is started once more.

        Raises BadInput if the worker cannot run a kernel that is known to be good, and DeviceLost if a board cannot.
        """
        if self._worker is None:
            problem = self._problem_of_start()
            if problem is not None and was_killed(problem):
                problem = self._problem_of_start()
            if problem is not None:
                if self._kind.is_remote:  # other boards of the run may be able to, and this one later
                    name = self._kind.called(self._settings.device)
                    raise DeviceLost(f"{name} cannot run a kernel that is known to be good: {problem}")
                raise BadInput(f"a kernel that is known to be good cannot be run here: {problem}")
        assert self._worker is not None
        return self._worker

    def _problem_of_start(self) -> str | None:
        """Start a worker. Return one line if it cannot run the kernel; then there is no worker."""
        env = {"TVM_NUM_THREADS": str(self._settings.threads), "TVM_BIND_THREADS": "0"}
        settings = replace(self._settings, reference_seconds=self.drift.last)
        self._worker = self._server.spawn("tune-measure", _ENTRY, settings, cpus=settings.cpus, env=env)
        self._used = False
        try:
            prepared: Prepared = self._receive(_START_SECONDS)
        except _Lost as lost:
            return lost.failure.message
        except TurnOver:
            raise
        except DeviceLost as lost:  # no candidate is to blame
            raise DeviceLost(str(lost)) from lost
        if prepared.problem is not None:
            self._discard()  # else the next start would take it for one that works
        return prepared.problem

    @property
    def drifts(self) -> list[Drift]:
        """Return the drift of each device that candidates run on."""
        return [self.drift]

    def run(self, job: RunJob) -> tuple[RunDone, Interval]:
        """Check and time one candidate. Return the result, and the interval that will tell whether the device kept its
        speed.

        After a failure the worker is replaced. If other candidates ran in it before, or somebody killed it, this
        candidate gets a second chance in the new worker: an earlier candidate may have written where it should not.
        """
        self.start()
        had_company = self._used
        done = self._run_once(job)
        if done.failure is not None and done.failure.kind in _SUSPECT:
            self._discard()
            if had_company or was_killed(done.failure.message):
                done = self._run_once(job)
                if done.failure is not None:
                    self._discard()
        return done, self.drift.interval

    def _run_once(self, job: RunJob) -> RunDone:
        try:
            worker = self._prepare(job.candidate.workload)
            worker.send(job)
            self._used = True
            done: RunDone = self._receive(self._run_seconds)
        except _Lost as lost:
            return RunDone((), lost.failure, None, 0)
        if worker.jobs >= _RECYCLE_JOBS or done.resident_bytes > self._settings.memory_bytes:
            self._discard()
        return done

    def compare(self, job: CompareJob, call_seconds: float) -> CompareDone | Failure:
        """Return the seconds per call of each candidate in each round, or why there are none. `call_seconds` is what
        one call of every candidate takes, all together."""
        try:
            worker = self._prepare(job.candidates[0].workload)
            worker.send(job)
            self._used = True
            # A round makes four calls of a slow kernel, each twice where others disturb it.
            calls_seconds = 8 * job.rounds * call_seconds
            done: CompareDone = self._receive(self._run_seconds * len(job.candidates) + calls_seconds)
        except _Lost as lost:
            return Failure(lost.failure.kind, f"while compared with others: {lost.failure.message}")
        return done

    def _prepare(self, workload: Workload) -> Worker:
        """Return the worker with the workload's operands ready, so that a run's deadline covers the candidate alone."""
        worker = self.start()
        worker.send(Prepare(workload))
        answer: Prepared = self._receive(_PREPARE_SECONDS)
        if answer.problem is not None:
            raise _Lost(FailureKind.RUN, f"operands cannot be made: {answer.problem}")
        return worker

    def _receive(self, seconds: float) -> Any:
        """Return the worker's next answer within `seconds`. If there is none, the worker is ended and _Lost is raised,
        or DeviceLost where the worker said so. Time in the turn queue does not count."""
        assert self._worker is not None
        try:
            while self._worker.connection.poll(seconds):
                answer = self._worker.connection.recv()
                if isinstance(answer, Waiting):
                    self._waits(answer.standing)
                    continue
                if isinstance(answer, Speed):
                    self.drift.add(answer.seconds)
                    continue
                if not isinstance(answer, Lost):
                    return answer
                self._discard()
                raise TurnOver(answer.message) if answer.turn_over else DeviceLost(answer.message, answer.running)
        except (EOFError, OSError):
            raise _Lost(FailureKind.RUN, self._discard()) from None
        except BaseException:  # an interrupt: the answer must not be taken for that to the next job
            self._discard()
            raise
        self._discard()
        raise _Lost(FailureKind.RUN_TIMEOUT, f"run deadline of {seconds:g} s exceeded")

    def look(self) -> None:
        """Raise DeviceLost if the worker, while it had nothing to do, found that the device is lost."""
        if self._worker is not None and self._worker.connection.poll(0):
            with contextlib.suppress(_Lost):  # the worker died: the next job finds another
                self._receive(0)

    def _discard(self) -> str:
        if self._worker is None:
            return ""
        worker, self._worker = self._worker, None
        return worker.stop()
