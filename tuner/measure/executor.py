"""The measuring worker: loads built candidates, checks their results, times them. `main` runs in a child process.

On a CPU, one thread per core, each pinned: the preflight kernel starts the thread pool before anything is measured.
"""

from __future__ import annotations

import gc
import random
import resource
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

import vision_ops
from templates.template import AnchorTemplate, template_named
from tuner.devices import keep_binaries_in, pin_threads
from tuner.devices.parallel import Pool, open_pool
from tuner.measure.cold import ColdWeight
from tuner.measure.contract import Candidate
from tuner.measure.jobs import CompareDone, CompareJob, ExecutorSettings, Prepare, Prepared, RunDone, RunJob
from tuner.measure.messages import describe
from tuner.measure.operands import AnchorOperands, Call, WorkloadOperands, operands_of
from tuner.measure.place import Place, open_place
from tuner.measure.timing import in_repeats, repeat
from tuner.measure.toolchain import ENTRY, preflight_length
from tuner.measure.zygote import limit_memory, resident_bytes
from tuning_db.record import Failure, FailureKind, Workload, tolerance_of

_OPERAND_BYTES = 512 << 20  # of all workloads kept; the least recently used go first
_COLD_KEPT = 4
_BURST_SECONDS = 0.006  # of one candidate's turn in a comparison
_BURST_CALLS = 3
_TRIES = 2


def main(connection: Connection, settings: ExecutorSettings) -> None:
    """Say whether the preflight kernel works (Prepared), then answer jobs until the connection closes (EOFError)."""
    assert vision_ops is not None  # imported for the templates and operators that it registers
    if settings.binaries is not None:
        keep_binaries_in(settings.binaries, settings.device)
    place = open_place(settings.device)
    pool = None if settings.pool is None else open_pool(Path(settings.pool))
    if pool is not None:
        pool.threads(settings.threads)
    problem = preflight(settings, place, pool)
    if place.pinned:
        pin_threads(settings.cpus)
    connection.send(Prepared(problem))
    gc.collect()
    gc.disable()  # no collection within a measurement; jobs leave no cycles behind
    executor = Executor(settings, place, pool)
    while True:
        job = connection.recv()
        limit_memory(settings.memory_bytes)
        connection.send(executor.answer(job))


def load_kernels(library: str, pool: Pool | None) -> Any:
    """The entry of a built library, its parallel loops run by the pool (None: by TVM's)."""
    module = tvm.runtime.load_module(library)
    if pool is not None:
        pool.serve(library)
    return module[ENTRY]


def preflight(settings: ExecutorSettings, place: Place, pool: Pool | None) -> str | None:
    """Run the preflight kernel, which starts the thread pool. One line if it cannot be loaded or computes nonsense."""
    try:
        count = preflight_length(settings.threads)
        data = np.arange(count, dtype=np.float32).reshape(settings.threads, -1)
        out = place.tensor(np.zeros_like(data))
        load_kernels(settings.preflight, pool)(place.tensor(data), out)
        return None if np.array_equal(place.array(out), data + 1) else "a kernel that adds one computed something else"
    except Exception as error:
        return describe(error)


@dataclass
class _Loaded:
    """A candidate ready to be run; `run` makes one call with the next cold weight and gives its seconds."""

    run: Callable[[], float]
    call: Call


class Executor:
    """Caches operands and cold weights between jobs."""

    def __init__(self, settings: ExecutorSettings, place: Place, pool: Pool | None) -> None:
        self._settings = settings
        self._pool = pool
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
            self._cold[key] = self._place.cold(packed, self._settings.cold_bytes)
        self._cold.move_to_end(key)
        return self._cold[key]

    def _load(self, candidate: Candidate, library: str, kept: int = _COLD_KEPT) -> _Loaded:
        operands = self._operands_of(candidate.workload)
        call = operands.call(candidate.config, lambda template: self._cold_weight(template, candidate, kept))
        function = load_kernels(library, self._pool)

        def once() -> float:
            return self._place.seconds(function, *call.arguments())

        return _Loaded(lambda: undisturbed(once), call)

    def _run(self, job: RunJob) -> RunDone:
        error = None
        try:
            loaded = self._load(job.candidate, job.library)
            for out in loaded.call.outputs:
                self._place.fill(out, unwritten(str(out.dtype)))
            loaded.run()
            error = loaded.call.error()
            allowed = self._settings.tolerance
            allowed = tolerance_of(job.candidate.workload.dtype) if allowed is None else allowed
            if not error <= allowed:
                failure = Failure(FailureKind.WRONG_ANSWER, _wrong(error, allowed))
                return RunDone((), failure, error if np.isfinite(error) else None, resident_bytes())
            for _ in range(template_named(job.candidate.config.template).first_calls - 1):
                loaded.run()
            times = in_repeats(repeat(loaded.run, job.repetition, job.best_seconds))
        except BaseException as problem:
            return RunDone(
                (), Failure(FailureKind.RUN, describe(problem, self._settings.memory_bytes)), error, resident_bytes()
            )
        return RunDone(tuple(times), None, error, resident_bytes())

    def _compare(self, job: CompareJob) -> CompareDone:
        kept = max(_COLD_KEPT, len(job.candidates))
        loaded = [self._load(c, lib, kept) for c, lib in zip(job.candidates, job.libraries, strict=True)]
        times: list[list[float]] = [[] for _ in loaded]
        for _ in range(job.rounds):
            for i in self._rng.sample(range(len(loaded)), len(loaded)):
                times[i].append(_burst(loaded[i].run))
        return CompareDone(tuple(map(tuple, times)))


def unwritten(dtype: str) -> float | int:
    """What an output is filled with before a kernel is checked, so that what it does not write is wrong."""
    return float("nan") if np.issubdtype(np.dtype(dtype), np.floating) else np.iinfo(dtype).min


def undisturbed(once: Callable[[], float]) -> float:
    """The seconds of a call that nothing else interrupted. Where other work keeps taking the cores away, the fastest
    of two calls: a preempted one tells about the scheduler's time slices, not about the kernel."""
    fastest = float("inf")
    for _ in range(_TRIES):
        before = _preemptions()
        fastest = min(fastest, once())
        if _preemptions() == before:
            break
    return fastest


def _preemptions() -> int:
    """How often any thread of this process lost its core to another process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _burst(run: Callable[[], float]) -> float:
    """The median of a few calls; one before them brings code and data back after the other candidates' turns."""
    run()
    times: list[float] = []
    while len(times) < _BURST_CALLS or sum(times) < _BURST_SECONDS:
        times.append(run())
    return median(times)


def _wrong(error: float, tolerance: float) -> str:
    if not np.isfinite(error):
        return "the result is not finite, or not all of it was written"
    return f"relative error {error:.1e} exceeds {tolerance:.1e}"
