"""`Measurer` makes trials: a `Client` runs built candidates, one after the other or against each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from board_agent.timing import Repetition
from templates.template import template_named
from tuner.devices import Device, usable_cpus
from tuner.devices.parallel import pool_library
from tuner.measure.codegen.toolchain import machine_of
from tuner.measure.local.builder import LocalBuilder
from tuner.measure.messages import CompareDone, CompareJob, ExecutorSettings, RunDone, RunJob
from tuner.measure.runner import Candidate, MeasureOptions, Spent
from tuner.measure.targets.drift import Drift, Interval
from tuner.measure.workers.batch import BuiltCandidate
from tuner.versions import versions
from tuning_db.record import DeviceKey, Failure, Trial, with_conditions


class Client(Protocol):
    """Runs built candidates in processes that may die of them, `width` of them at a time (see
    `workers.run_client.MeasureClient`)."""

    @property
    def width(self) -> int:
        """Return how many candidates run at a time, each for another thread."""
        ...

    @property
    def drifts(self) -> Sequence[Drift]:
        """Return the drift of each device that candidates run on."""
        ...

    def run(self, job: RunJob) -> tuple[RunDone, Interval]:
        """See `MeasureClient.run`."""
        ...

    def compare(self, job: CompareJob, call_seconds: float) -> CompareDone | Failure:
        """See `MeasureClient.compare`."""
        ...


def executor_settings(device: Device, options: MeasureOptions, builder: LocalBuilder) -> ExecutorSettings:
    """Return the settings of the processes that measure what `builder` builds. It builds their preflight kernel; raises
    BadInput if that cannot be built."""
    cpus, preflight = usable_cpus(), builder.preflight()
    return ExecutorSettings(
        device=device.name,
        target=str(device.target),
        threads=device.threads,
        cpus=tuple(device.kind.measuring_cores(device, cpus)),
        preflight=str(preflight),
        cold_bytes=options.cold_bytes or 2 * device.cache_bytes,
        tolerance=options.tolerance,
        memory_bytes=builder.memory_bytes,
        seed=options.seed,
        binaries=builder.binaries,
        pool=str(pool) if device.is_host and (pool := pool_library(machine_of(device.target))) else None,
        run_seconds=options.run_seconds,
        key=device.key,
    )


class Measurer:
    """Measures what was built, with `client`, and makes trials of it. Threads may share it, as they may the client."""

    def __init__(
        self,
        client: Client,
        device: DeviceKey,
        options: MeasureOptions,
        *,
        spent: Spent,
        alone: AbstractContextManager[object],
    ) -> None:
        """The seconds of checks and runs are added to `spent`. `alone` is held while a candidate runs."""
        self._client, self._device, self._options = client, device, options
        self._spent, self._alone = spent, alone
        self._versions = versions()
        self._open: list[tuple[Trial, Interval]] = []  # trials that may yet turn out to be disturbed
        self._counting = threading.Lock()  # guards what several threads add to

    def measure(self, built: BuiltCandidate, best_seconds: float | None) -> Trial:
        """Return the trial of a candidate. `best_seconds` is as in `Runner.measure`."""
        trial, interval = self._trial(built, self._options.repetition, best_seconds)
        if trial.ok and not trial.throttled:
            with self._counting:
                self._open.append((trial, interval))
        return trial

    def _trial(
        self, built: BuiltCandidate, repetition: Repetition, best_seconds: float | None
    ) -> tuple[Trial, Interval]:
        started = time.perf_counter()
        candidate, done, interval = built.candidate, RunDone((), built.failure, None, 0), Interval()
        if built.failure is None:
            job = RunJob(candidate, str(built.library), repetition, best_seconds)
            with self._alone:
                done, interval = self._client.run(job)
        trial = Trial(
            workload=candidate.workload,
            device=self._device,
            config=candidate.config,
            template_version=_template_version(candidate),
            times=done.times,
            failure=done.failure,
            error=done.error,
            versions=with_conditions(self._versions, done.throttled, done.condition),
        )
        with self._counting:
            self._spent.check_seconds += done.check_seconds
            if self._client.width == 1:  # else whoever measures several at a time times all of them together
                self._spent.run_seconds += time.perf_counter() - started
        return trial, interval

    def compare(self, built: Sequence[BuiltCandidate]) -> list[Trial]:
        """Check each candidate, then measure those that are right against each other. Return a trial of each, with one
        time per round (see `Runner.compare`)."""
        check = replace(self._options.repetition, least=1, most=1)
        trials = [self._trial(each, check, best_seconds=None)[0] for each in built]
        good = [i for i, trial in enumerate(trials) if trial.ok]
        if not good:
            return trials
        started = time.perf_counter()
        job = CompareJob(
            tuple(built[i].candidate for i in good),
            tuple(str(built[i].library) for i in good),
            self._options.compare_rounds,
        )
        result = self._client.compare(job, sum(trials[i].seconds for i in good))
        self._spent.run_seconds += time.perf_counter() - started
        for place, i in enumerate(good):  # the times of the rounds take the place of the check's own
            if isinstance(result, Failure):
                trials[i] = replace(trials[i], times=(), failure=result)
            else:
                told = with_conditions(self._versions, result.throttled, result.condition)
                trials[i] = replace(trials[i], times=result.times[place], versions=told)
        return trials

    def disturbed(self) -> list[Trial]:
        """See `Runner.disturbed`."""
        with self._counting:
            over = [interval.ratio is not None for _, interval in self._open]
            ended = [found for found, is_over in zip(self._open, over, strict=True) if is_over]
            self._open = [found for found, is_over in zip(self._open, over, strict=True) if not is_over]
        return [trial for trial, interval in ended if interval.is_disturbed]

    def remarks(self) -> list[str]:
        """See `Runner.remarks`."""
        return [drift.summary for drift in self._client.drifts if drift.summary is not None]


def _template_version(candidate: Candidate) -> int:
    try:
        return template_named(candidate.config.template).version
    except KeyError:  # no such template: the trial's failure says so
        return 0
