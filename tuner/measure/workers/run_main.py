"""The measuring worker loads built candidates, checks their results and times them. `main` runs in a child process.

On a CPU, each thread is pinned to a core of its own. The preflight kernel starts the thread pool before anything is
measured.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tvm.target import Target

import vision_ops
from board_agent.sandbox import limit_memory, resident_bytes
from templates.template import AnchorTemplate, template_named, tolerance_with
from tuner.devices import kind_of
from tuner.devices.board import KernelDied, NotAnswered, NotCompiled
from tuner.errors import BadInput, DeviceLost, TurnOver
from tuner.measure.failures import describe
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
from tuner.measure.runner import Candidate
from tuner.measure.targets.cold_weights import ColdWeight
from tuner.measure.targets.drift import ReferenceKernel
from tuner.measure.targets.executor import Executor, open_executor
from tuner.measure.targets.operands import (
    AnchorOperands,
    Call,
    Check,
    WorkloadOperands,
    operands_of,
    unwritten,
    verdict,
)
from tuning_db.record import Failure, FailureKind, Workload

_OPERAND_BYTES = 512 << 20  # for the operands of all workloads; the least recently used go first
_COLD_KEPT = 4
_FRESH_AFTER = 100  # candidates of a workload; it then gets other operands
_CHEAP_SECONDS = 2e-3  # for the calls of all checks: less than the rest of a trial takes
_SEEDS_APART = 1_000_003  # how far the seeds of two rounds of operands differ
_ALIVE_SECONDS = 1.0  # between looks whether an idle device is still there: a board that is gone is to be noticed soon


def main(connection: Connection, settings: ExecutorSettings) -> None:
    """Say whether the preflight kernel works (Prepared), then answer jobs until the connection closes (EOFError). Now
    and then the time of that kernel precedes an answer (Speed). Where the device is lost (DeviceLost), Lost is the last
    answer."""
    assert vision_ops is not None  # imported for the templates and operators that it registers
    if settings.binaries is not None:
        kind_of(settings.device).keep_binaries_in(settings.binaries, settings.device)
    try:
        try:
            executor = open_executor(settings, lambda standing: connection.send(Waiting(standing)))
        except (BadInput, KernelDied, RuntimeError, ValueError) as error:
            connection.send(Prepared(str(error) if isinstance(error, BadInput) else describe(error)))
            return
        reference = ReferenceKernel(settings, executor)
        problem = reference.problem()
        if problem is None:
            connection.send(Speed(reference.measure()))
        connection.send(Prepared(problem))
        gc.collect()
        gc.disable()  # no collection within a measurement; jobs leave no cycles behind
        runner = CandidateRunner(settings, executor, reference.keeps_denormals)
        while True:
            while not connection.poll(_ALIVE_SECONDS):
                executor.alive()
            job = connection.recv()
            limit_memory(settings.memory_bytes)
            if reference.is_due(job):
                connection.send(Speed(reference.measure()))
            connection.send(runner.answer(job))
    except DeviceLost as lost:
        connection.send(Lost(str(lost), lost.running, isinstance(lost, TurnOver)))


class _Wrong(Exception):
    """A kernel is wrong. `error` is the error of its result, where that is finite."""

    def __init__(self, failure: Failure, error: float | None) -> None:
        super().__init__(failure.message)
        self.failure, self.error = failure, error


class CandidateRunner:
    """Checks, times and compares candidates. It keeps operands and cold weights between jobs."""

    def __init__(self, settings: ExecutorSettings, executor: Executor, denormals: bool) -> None:
        """Start with nothing kept. `denormals` says whether the device computes with denormal numbers."""
        self._settings = settings
        self._executor = executor
        self._denormals = denormals
        self._preparing = 0.0  # seconds spent on operands since the last candidate
        self._used: Counter[str] = Counter()  # uses of a workload's operands since they were made
        self._rounds: dict[str, int] = {}  # how often a workload's operands were made anew
        self._target = Target(settings.target)
        self._rng = random.Random(settings.seed)
        self._operands: OrderedDict[str, WorkloadOperands] = OrderedDict()
        self._cold: OrderedDict[tuple[str, str, str], ColdWeight] = OrderedDict()

    def answer(self, job: Prepare | RunJob | CompareJob) -> Prepared | RunDone | CompareDone:
        if isinstance(job, Prepare):
            return self._prepare(job.workload)
        return self._run(job) if isinstance(job, RunJob) else self._compare(job)

    def _prepare(self, workload: Workload) -> Prepared:
        """Make a workload's operands and their references unless they are kept. Now and then they are made anew."""
        began = time.perf_counter()
        try:
            self._used[workload.key] += 1
            if self._used[workload.key] > _FRESH_AFTER and workload.key in self._operands:
                self._forget(workload.key)
            self._operands_of(workload)
        except DeviceLost:
            raise
        except Exception as error:
            return Prepared(describe(error, self._settings.memory_bytes))
        self._preparing += time.perf_counter() - began
        return Prepared()

    def _operands_of(self, workload: Workload) -> WorkloadOperands:
        if workload.key not in self._operands:
            self._rounds[workload.key] = 1 + self._rounds.get(workload.key, -1)
            seed = self._settings.seed + _SEEDS_APART * self._rounds[workload.key]
            self._operands[workload.key] = operands_of(
                workload, self._target, self._executor, seed, denormals=self._denormals
            )
            while len(self._operands) > 1 and sum(o.nbytes for o in self._operands.values()) > _OPERAND_BYTES:
                self._forget(next(iter(self._operands)))
        self._operands.move_to_end(workload.key)
        return self._operands[workload.key]

    def _cold_weight(self, template: AnchorTemplate, candidate: Candidate, kept: int) -> ColdWeight:
        packed_as = template.weight_key(candidate.workload, self._target, candidate.config)
        key = candidate.workload.key, template.name, packed_as
        if key not in self._cold:
            while len(self._cold) >= kept:
                self._cold.popitem(last=False)
            operands = self._operands_of(candidate.workload)
            assert isinstance(operands, AnchorOperands)
            packed = operands.packed_weight(template, candidate.config)
            # The copies do not count as the candidate's memory. On a server with a large cache they alone may exceed
            # its limit.
            limit_memory(self._settings.memory_bytes + self._settings.cold_bytes)
            self._cold[key] = self._executor.cold(packed, self._settings.cold_bytes)
            limit_memory(self._settings.memory_bytes)
        self._cold.move_to_end(key)
        return self._cold[key]

    def _load(self, candidate: Candidate, library: str, kept: int = _COLD_KEPT) -> tuple[Any, Call]:
        operands = self._operands_of(candidate.workload)
        call = operands.call(candidate.config, lambda template: self._cold_weight(template, candidate, kept))
        return self._executor.load(library), call

    def _run(self, job: RunJob) -> RunDone:
        """Check a candidate, time it, and check it again: what the timed calls computed, and what it computes on
        operands of other kinds. A candidate that takes long and is not near the incumbent is spared the other kinds. It
        has no error then, so that it never becomes the incumbent."""
        error = None
        try:
            function, call = self._load(job.candidate, job.library)
            began = time.perf_counter()
            error = self._checked(job, function, call, call.checks[0])
            more = template_named(job.candidate.config.template).first_calls - 1
            self._executor.fill(_unwritten(call))
            timed = time.perf_counter()
            times = self._executor.repeat(function, call.arguments, job.repetition, job.best_seconds, more)
            began += time.perf_counter() - timed
            throttled, condition = self._executor.throttled, self._executor.condition
            error = max(error, self._right(job, call.checks[0]))
            if self._is_spared(job, times, call):
                error = None
            else:
                for check in call.checks[1:]:
                    self._checked(job, function, call, check)
            self._see_damage(call)
        except DeviceLost:
            raise
        except _Wrong as wrong:  # the tuner replaces this worker, and its operands with it
            return RunDone((), wrong.failure, wrong.error, resident_bytes())
        except BaseException as problem:
            failure = Failure(_kind_of(problem), describe(problem, self._settings.memory_bytes))
            return RunDone((), failure, error, resident_bytes())
        spent, self._preparing = time.perf_counter() - began + self._preparing, 0.0
        return RunDone(tuple(times), None, error, resident_bytes(), throttled, condition, spent)

    def _is_spared(self, job: RunJob, times: Sequence[float], call: Call) -> bool:
        far = job.best_seconds is not None and min(times) > job.best_seconds * job.repetition.near
        return far and min(times) * len(call.checks) > _CHEAP_SECONDS

    def _checked(self, job: RunJob, function: Any, call: Call, check: Check) -> float:
        """Call the function once with the operands of a check and return the error. Raises _Wrong where it is not
        allowed."""
        self._executor.call(function, check.arguments, _unwritten(call) if check.kind.poisoned else ())
        return self._right(job, check)

    def _right(self, job: RunJob, check: Check) -> float:
        """Return the error of what the outputs hold. Raises _Wrong where it is not allowed."""
        error = check.error()
        workload, config, allowed = job.candidate.workload, job.candidate.config, self._settings.tolerance
        if allowed is None:
            allowed = tolerance_with(config.template, workload.dtype)
        failure = verdict(error, workload.dtype, allowed, check.kind)
        if failure is not None:
            raise _Wrong(failure, error if np.isfinite(error) else None)
        return error

    def _see_damage(self, call: Call) -> None:
        """Raise _Wrong for a kernel that wrote where it must not."""
        operands = call.checks[0].operands
        damage = self._executor.damage(list(operands.values()))
        if damage is not None:
            number, how = damage
            raise _Wrong(Failure(FailureKind.WRONG_ANSWER, f"operand {list(operands)[number]!r}: {how}"), None)

    def _forget(self, workload: str) -> None:
        """Drop the operands of a workload, and the copies of its weights, because its next operands have
        other weights."""
        del self._operands[workload]
        self._used.pop(workload, None)
        for key in [key for key in self._cold if key[0] == workload]:
            del self._cold[key]

    def _compare(self, job: CompareJob) -> CompareDone:
        kept = max(_COLD_KEPT, len(job.candidates))
        loaded = [self._load(c, lib, kept) for c, lib in zip(job.candidates, job.libraries, strict=True)]
        runs = [(function, call.arguments) for function, call in loaded]
        order = [i for _ in range(job.rounds) for i in self._rng.sample(range(len(runs)), len(runs))]
        times = tuple(map(tuple, self._executor.compare(runs, order)))
        return CompareDone(times, self._executor.throttled, self._executor.condition)


def _unwritten(call: Call) -> list[tuple[Any, float]]:
    return [(out, unwritten(str(out.dtype))) for out in call.outputs]


def _kind_of(problem: BaseException) -> FailureKind:
    if isinstance(problem, NotAnswered):
        return FailureKind.RUN_TIMEOUT
    return FailureKind.COMPILE if isinstance(problem, NotCompiled) else FailureKind.RUN
