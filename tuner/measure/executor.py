"""The measuring worker: loads built candidates, checks their results, times them. `main` runs in a child process.

On a CPU, one thread per core, each pinned: the preflight kernel starts the thread pool before anything is measured.
"""

from __future__ import annotations

import gc
import random
from collections import OrderedDict
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tvm.target import Target

import vision_ops
from board_agent.sandbox import limit_memory, resident_bytes
from templates.template import AnchorTemplate, template_named
from tuner.devices import keep_binaries_in
from tuner.devices.board import KernelDied, NotAnswered, NotCompiled
from tuner.errors import BadInput, DeviceLost, TurnOver
from tuner.measure.cold import ColdWeight
from tuner.measure.contract import Candidate
from tuner.measure.drift import Reference
from tuner.measure.jobs import (
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
from tuner.measure.messages import describe
from tuner.measure.operands import AnchorOperands, Call, WorkloadOperands, operands_of, unwritten, verdict
from tuner.measure.place import Place, open_place
from tuning_db.record import Failure, FailureKind, Workload

_OPERAND_BYTES = 512 << 20  # of all workloads kept; the least recently used go first
_COLD_KEPT = 4
_ALIVE_SECONDS = 1.0  # between looks whether an idle device is still there: a board that is gone is to be noticed soon


def main(connection: Connection, settings: ExecutorSettings) -> None:
    """Say whether the preflight kernel works (Prepared), then answer jobs until the connection closes (EOFError);
    now and then with what that kernel takes before (Speed). Where the device is lost (DeviceLost), Lost is the last
    answer."""
    assert vision_ops is not None  # imported for the templates and operators that it registers
    if settings.binaries is not None:
        keep_binaries_in(settings.binaries, settings.device)
    try:
        try:
            place = open_place(settings, lambda standing: connection.send(Waiting(standing)))
        except (BadInput, KernelDied, RuntimeError, ValueError) as error:
            connection.send(Prepared(str(error) if isinstance(error, BadInput) else describe(error)))
            return
        reference = Reference(settings, place)
        problem = reference.problem()
        if problem is None:
            connection.send(Speed(reference.measure()))
        connection.send(Prepared(problem))
        gc.collect()
        gc.disable()  # no collection within a measurement; jobs leave no cycles behind
        executor = Executor(settings, place)
        while True:
            while not connection.poll(_ALIVE_SECONDS):
                place.alive()
            job = connection.recv()
            limit_memory(settings.memory_bytes)
            if reference.is_due(job):
                connection.send(Speed(reference.measure()))
            connection.send(executor.answer(job))
    except DeviceLost as lost:
        connection.send(Lost(str(lost), lost.running, isinstance(lost, TurnOver)))


class Executor:
    """Caches operands and cold weights between jobs."""

    def __init__(self, settings: ExecutorSettings, place: Place) -> None:
        self._settings = settings
        self._place = place
        self._target = Target(settings.target)
        self._rng = random.Random(settings.seed)
        self._operands: OrderedDict[str, WorkloadOperands] = OrderedDict()
        self._cold: OrderedDict[tuple[str, str, str], ColdWeight] = OrderedDict()

    def answer(self, job: Prepare | RunJob | CompareJob) -> Prepared | RunDone | CompareDone:
        if isinstance(job, Prepare):
            return self._prepare(job.workload)
        return self._run(job) if isinstance(job, RunJob) else self._compare(job)

    def _prepare(self, workload: Workload) -> Prepared:
        try:
            self._operands_of(workload)
        except DeviceLost:
            raise
        except Exception as error:
            return Prepared(describe(error, self._settings.memory_bytes))
        return Prepared()

    def _operands_of(self, workload: Workload) -> WorkloadOperands:
        if workload.key not in self._operands:
            self._operands[workload.key] = operands_of(workload, self._target, self._place, self._settings.seed)
            while len(self._operands) > 1 and sum(o.nbytes for o in self._operands.values()) > _OPERAND_BYTES:
                self._operands.popitem(last=False)
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
            # The copies are not what the candidate allocates, and of a server's cache they alone may exceed its limit.
            limit_memory(self._settings.memory_bytes + self._settings.cold_bytes)
            self._cold[key] = self._place.cold(packed, self._settings.cold_bytes)
            limit_memory(self._settings.memory_bytes)
        self._cold.move_to_end(key)
        return self._cold[key]

    def _load(self, candidate: Candidate, library: str, kept: int = _COLD_KEPT) -> tuple[Any, Call]:
        operands = self._operands_of(candidate.workload)
        call = operands.call(candidate.config, lambda template: self._cold_weight(template, candidate, kept))
        return self._place.load(library), call

    def _run(self, job: RunJob) -> RunDone:
        error = None
        try:
            function, call = self._load(job.candidate, job.library)
            self._place.call(function, call.arguments, [(out, unwritten(str(out.dtype))) for out in call.outputs])
            error = call.error()
            if (failure := verdict(error, job.candidate.workload.dtype, self._settings.tolerance)) is not None:
                return RunDone((), failure, error if np.isfinite(error) else None, resident_bytes())
            more = template_named(job.candidate.config.template).first_calls - 1
            times = self._place.repeat(function, call.arguments, job.repetition, job.best_seconds, more)
        except DeviceLost:
            raise
        except BaseException as problem:
            failure = Failure(_kind_of(problem), describe(problem, self._settings.memory_bytes))
            return RunDone((), failure, error, resident_bytes())
        place = self._place
        return RunDone(tuple(times), None, error, resident_bytes(), place.throttled, place.condition)

    def _compare(self, job: CompareJob) -> CompareDone:
        kept = max(_COLD_KEPT, len(job.candidates))
        loaded = [self._load(c, lib, kept) for c, lib in zip(job.candidates, job.libraries, strict=True)]
        runs = [(function, call.arguments) for function, call in loaded]
        order = [i for _ in range(job.rounds) for i in self._rng.sample(range(len(runs)), len(runs))]
        times = tuple(map(tuple, self._place.compare(runs, order)))
        return CompareDone(times, self._place.throttled, self._place.condition)


def _kind_of(problem: BaseException) -> FailureKind:
    if isinstance(problem, NotAnswered):
        return FailureKind.RUN_TIMEOUT
    return FailureKind.COMPILE if isinstance(problem, NotCompiled) else FailureKind.RUN
