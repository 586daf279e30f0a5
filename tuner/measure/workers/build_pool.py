"""`BuilderPool` compiles candidates to shared objects in several processes. Each candidate has a deadline."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Protocol

from tuner.errors import BadInput
from tuner.measure.failures import OUT_OF_MEMORY
from tuner.measure.messages import BuildDone, BuildJob, WarmJob
from tuner.measure.scratch import Scratch
from tuner.measure.workers.worker import ProcessServer, Worker
from tuning_db.record import Failure, FailureKind

_ENTRY = "tuner.measure.workers.build_main:main"
_RECYCLE_JOBS = 300  # jobs of a worker: TVM and LLVM intern types and targets for ever
_STOP_SECONDS = 0.1  # between looks at whether a build is to be stopped

Jobs = Sequence[BuildJob] | Sequence[WarmJob]
Done = Callable[[int, Failure | None], object]


class BuildStopped(Exception):
    """Nobody waits for these builds any more."""


class Builders(Protocol):
    """Builds candidates. One `build` may run at a time."""

    def build(
        self, jobs: Sequence[BuildJob], done: Done | None = None, stop: threading.Event | None = None
    ) -> list[Failure | None]:
        """Run all jobs. Return each job's failure, or None where its library was written.

        `done` is called with a job's index and outcome as soon as they are known. Raises BuildStopped when `stop` is
        set.
        """
        ...


class Settings(Protocol):
    """Settings that workers are started with. The pool reads only how much one job may allocate."""

    @property
    def memory_bytes(self) -> int: ...


@dataclass
class _Slot:
    """The slot that a builder has: its worker (None until needed) and the job that the worker has."""

    worker: Worker | None = None
    job: int | None = None
    deadline: float = 0.0
    first_resident_bytes: int = 0


@dataclass(frozen=True)
class PoolOptions:
    """Options that say how many `builders` a BuilderPool has, on which `cpus` they run, and how long a job may take.

    Each builder is pinned to one of `cpus` in turn, or runs anywhere on them (not `pinned`). `entry` is what builders
    run (see `fork_server.Spawn`); it answers each BuildJob with a BuildDone.
    """

    builders: int
    cpus: tuple[int, ...]
    compile_seconds: float
    entry: str = _ENTRY
    pinned: bool = True


class BuilderPool:
    """Builds jobs on several workers. A worker that crashes or overruns the deadline of its job is replaced. So is one
    that leaks memory or has built many candidates."""

    def __init__(self, server: ProcessServer, settings: Settings, options: PoolOptions) -> None:
        self._server = server
        self._settings = settings
        self._options = options
        self._slots = [_Slot() for _ in range(options.builders)]

    def build(self, jobs: Jobs, done: Done | None = None, stop: threading.Event | None = None) -> list[Failure | None]:
        """See `Builders.build`. The outcome of a WarmJob is None if it ran."""
        results: dict[int, Failure | None] = {}
        waiting = deque(range(len(jobs)))
        retried: set[int] = set()
        try:
            while len(results) < len(jobs):
                for slot in self._slots:
                    if slot.job is None and waiting:
                        self._hand_out(slot, waiting.popleft(), jobs)
                for slot in self._finished(float("inf") if stop is None else _STOP_SECONDS):
                    job = slot.job
                    self._collect(slot, results, waiting, retried)
                    if done is not None and job in results:
                        done(job, results[job])
                if stop is not None and stop.is_set():
                    raise BuildStopped
        finally:
            self._abandon()
        return [results[i] for i in range(len(jobs))]

    def preflight(self, scratch: Scratch) -> Path:
        """Build a kernel that is known to be good, and return its library. Raises BadInput if it cannot be built."""
        library = scratch.new_library()
        (failure,) = self.build([BuildJob(None, str(library))])
        scratch.check_disk(failure)
        if failure is not None:
            raise BadInput(f"a kernel that is known to be good cannot be built here: {failure.message}")
        return library

    def _hand_out(self, slot: _Slot, job: int, jobs: Jobs) -> None:
        if slot.worker is None:
            options = self._options
            cpu = options.cpus[self._slots.index(slot) % len(options.cpus)]
            cpus = (cpu,) if options.pinned else options.cpus
            slot.worker = self._server.spawn("tune-build", options.entry, self._settings, cpus=cpus)
            slot.first_resident_bytes = 0
        slot.job = job
        slot.deadline = time.monotonic() + self._options.compile_seconds
        slot.worker.send(jobs[job])

    def _finished(self, seconds: float) -> list[_Slot]:
        """Wait, up to `seconds`, for busy slots that have an answer, lost their worker, or passed their deadline.
        Return those."""
        busy = {slot.worker.connection: slot for slot in self._slots if slot.worker and slot.job is not None}
        rest = max(0.0, min(slot.deadline for slot in busy.values()) - time.monotonic())
        ready = connection.wait(list(busy), min(rest, seconds))
        late = [slot for conn, slot in busy.items() if conn not in ready and slot.deadline <= time.monotonic()]
        return [busy[conn] for conn in ready if isinstance(conn, connection.Connection)] + late

    def _collect(self, slot: _Slot, results: dict[int, Failure | None], waiting: deque[int], retried: set[int]) -> None:
        worker, job = slot.worker, slot.job
        assert worker is not None
        assert job is not None
        slot.job = None
        if not worker.connection.poll():
            self._drop(slot)
            message = f"compile deadline of {self._options.compile_seconds:g} s exceeded"
            results[job] = Failure(FailureKind.COMPILE_TIMEOUT, message)
            return
        try:
            done: BuildDone = worker.connection.recv()
        except (EOFError, OSError):
            how = self._drop(slot)
            if worker.jobs > 1 and job not in retried:
                retried.add(job)  # what an earlier candidate broke must not be blamed on this one
                waiting.appendleft(job)
            else:
                results[job] = Failure(FailureKind.COMPILE, how)
            return
        results[job] = done.failure
        slot.first_resident_bytes = slot.first_resident_bytes or done.resident_bytes
        grown = done.resident_bytes - slot.first_resident_bytes
        if worker.jobs >= _RECYCLE_JOBS or grown > self._settings.memory_bytes // 2 or _out_of_memory(done):
            self._drop(slot)

    def _drop(self, slot: _Slot) -> str:
        assert slot.worker is not None
        worker, slot.worker, slot.job = slot.worker, None, None
        return worker.stop()

    def _abandon(self) -> None:
        """Stop the workers whose answers nobody waits for any more."""
        for slot in self._slots:
            if slot.job is not None and slot.worker is not None:
                self._drop(slot)


def _out_of_memory(done: BuildDone) -> bool:
    return done.failure is not None and done.failure.message.startswith(OUT_OF_MEMORY)
