"""LocalRunner measures on a device of this machine: builds a batch with all cores, then measures it, builders idle.

Builds and measurements take turns because they would share the last-level cache and the memory bus, and because two
cores that build and then measure are faster than one that builds beside one that measures (a build takes about four
times as long as a measurement).
"""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from board_agent.timing import Repetition
from templates.template import template_named
from tuner.devices import Device, compiles_when_run, pocl_cache, usable_cpus
from tuner.devices.parallel import pool_library
from tuner.errors import BadInput
from tuner.measure.contract import Candidate, MeasureOptions, Runner
from tuner.measure.jobs import BuilderSettings, BuildJob, CompareJob, ExecutorSettings, RunDone, RunJob, WarmJob
from tuner.measure.laboratory import Laboratory
from tuner.measure.pool import BuilderPool
from tuner.measure.processes import ProcessServer
from tuner.measure.scratch import Scratch
from tuner.measure.toolchain import check_toolchain, operands_file
from tuning_db.record import Failure, Trial, Workload

_PRELOAD = ("tuner.measure.builder", "tuner.measure.executor")
_MEMORY_BYTES = (512 << 20, 4 << 30)  # least and most that one candidate may allocate by default
_BATCH_PER_BUILDER = 8


@dataclass
class Spent:
    """What a runner did so far, in trials and wall seconds."""

    trials: int = 0
    build_seconds: float = 0.0
    run_seconds: float = 0.0


class LocalRunner(Runner):
    """A Runner on a device of this machine. Use it as a context manager: it owns processes and a scratch folder."""

    def __init__(self, device: Device, options: MeasureOptions | None = None) -> None:
        """Starts the processes and measures a kernel that is known to be good.

        Raises BadInput, with what to do, where the toolchain does not work or a plugin cannot be imported.
        """
        self.device = device
        self.options = options or MeasureOptions()
        self.spent = Spent()
        self._versions = {"tvm": importlib.metadata.version("apache-tvm"), "edgetune": _own_version()}
        linker = check_toolchain(self.device.target)
        import_plugins(self.options.plugins)
        self._scratch = Scratch()
        self._libraries = 0
        self._server = ProcessServer(self._scratch.path, (*_PRELOAD, *self.options.plugins))
        try:
            self._start(linker)
        except BaseException:
            self.close()
            raise

    def _start(self, linker: str) -> None:
        options, device, cpus = self.options, self.device, usable_cpus()
        builders = options.builders or len(cpus)
        memory = options.memory_bytes or _default_memory_bytes(builders)
        target = str(device.target)
        self._binaries = None if device.is_host else self._scratch.path / "binaries"
        binaries = None if self._binaries is None else str(self._binaries)
        self._compiles_when_run = compiles_when_run(device.name)
        self._batch = builders * _BATCH_PER_BUILDER
        # Builders take the cores from the other end, so that a single one leaves the measuring cores in peace.
        self._pool = BuilderPool(
            self._server,
            BuilderSettings(device.name, target, linker, device.threads, memory, binaries),
            builders,
            cpus[::-1],
            options.compile_seconds,
        )
        preflight = self._preflight()
        settings = ExecutorSettings(
            device=device.name,
            target=target,
            threads=device.threads,
            cpus=tuple(cpus[: device.threads] if device.name == "cpu" else cpus),
            preflight=str(preflight),
            cold_bytes=options.cold_bytes or 2 * device.cache_bytes,
            tolerance=options.tolerance,
            memory_bytes=memory,
            seed=options.seed,
            binaries=binaries,
            pool=str(pool) if device.is_host and (pool := pool_library()) is not None else None,
            run_seconds=options.run_seconds,
            key=device.key,
        )
        self._laboratory = self._open_laboratory(settings)
        self._laboratory.start()

    def _open_laboratory(self, settings: ExecutorSettings) -> Any:
        return Laboratory(self._server, settings, self.options.run_seconds)

    def _preflight(self) -> Path:
        """Build a kernel that is known to be good. Raises BadInput if it cannot be built."""
        library = self._new_library()
        (failure,) = self._pool.build([BuildJob(None, str(library))])
        self._check_disk([failure])
        if failure is not None:
            raise BadInput(f"a kernel that is known to be good cannot be built here: {failure.message}")
        return library

    def _new_library(self) -> Path:
        self._libraries += 1
        return self._scratch.path / f"k{self._libraries}.so"

    def measure(self, candidates: Sequence[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """See contract.Runner.measure."""
        best: dict[Workload, float | None] = {candidates[0].workload: best_seconds} if candidates else {}
        for start in range(0, len(candidates), self._batch):
            batch = candidates[start : start + self._batch]
            libraries = [self._new_library() for _ in batch]
            try:
                yield from self._measured(batch, libraries, self._build(batch, libraries), best)
            finally:
                self._remove(libraries)

    def _measured(
        self,
        batch: Sequence[Candidate],
        libraries: Sequence[Path],
        failures: Sequence[Failure | None],
        best: dict[Workload, float | None],
    ) -> Iterator[Trial]:
        """The trials of a batch that was built, in order; `best` is kept up to date."""
        for candidate, library, failure in zip(batch, libraries, failures, strict=True):
            trial = self._measure_one(candidate, library, failure, best.get(candidate.workload))
            if trial.ok:
                best[candidate.workload] = min(best.get(candidate.workload) or trial.seconds, trial.seconds)
            yield trial

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """See contract.Runner.compare."""
        if len({c.workload for c in candidates}) > 1:
            raise ValueError("only candidates of one workload can be compared")
        libraries = [self._new_library() for _ in candidates]
        check = replace(self.options.repetition, least=1, most=1)
        try:
            failures = self._build(candidates, libraries)
            trials = [
                self._measure_one(c, library, failure, None, check)
                for c, library, failure in zip(candidates, libraries, failures, strict=True)
            ]
            return self._alternate(candidates, libraries, trials)
        finally:
            self._remove(libraries)

    def _alternate(
        self, candidates: Sequence[Candidate], libraries: Sequence[Path], checked: Sequence[Trial]
    ) -> list[Trial]:
        """The checked trials with the times of alternated rounds instead of the check's own."""
        good = [i for i, trial in enumerate(checked) if trial.ok]
        if not good:
            return list(checked)
        started = time.perf_counter()
        job = CompareJob(
            tuple(candidates[i] for i in good), tuple(str(libraries[i]) for i in good), self.options.compare_rounds
        )
        result = self._laboratory.compare(job, sum(checked[i].seconds for i in good))
        self.spent.run_seconds += time.perf_counter() - started
        trials = list(checked)
        for place, i in enumerate(good):
            if isinstance(result, Failure):
                trials[i] = replace(trials[i], times=(), failure=result)
            else:
                trials[i] = replace(trials[i], times=result[place])
        return trials

    def _build(self, candidates: Sequence[Candidate], libraries: Sequence[Path]) -> list[Failure | None]:
        started = time.perf_counter()
        jobs = [BuildJob(c, str(library)) for c, library in zip(candidates, libraries, strict=True)]
        failures = self._pool.build(jobs)
        if self._compiles_when_run:
            self._pool.build([WarmJob(job.library) for job, failure in zip(jobs, failures, strict=True) if not failure])
        self.spent.build_seconds += time.perf_counter() - started
        self._check_disk(failures)
        return failures

    def _check_disk(self, failures: Sequence[Failure | None]) -> None:
        """A full disk is no candidate's fault. LLVM aborts on it and the linker prints it: only the text tells."""
        for failure in failures:
            for problem in map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)):
                if failure is not None and problem in failure.message:
                    raise BadInput(f"{self._scratch.path.parent}: {problem}: free some space there or set TMPDIR")

    def _measure_one(
        self,
        candidate: Candidate,
        library: Path,
        failure: Failure | None,
        best_seconds: float | None,
        repetition: Repetition | None = None,
    ) -> Trial:
        """The trial of a candidate that was built, or failed to be."""
        started = time.perf_counter()
        done = RunDone((), failure, None, 0)
        if failure is None:
            job = RunJob(candidate, str(library), repetition or self.options.repetition, best_seconds)
            done = self._laboratory.run(job)
        self.spent.trials += 1
        self.spent.run_seconds += time.perf_counter() - started
        return Trial(
            workload=candidate.workload,
            device=self.device.key,
            config=candidate.config,
            template_version=_template_version(candidate),
            times=done.times,
            failure=done.failure,
            error=done.error,
            versions={**self._versions, "throttled": "yes"} if done.throttled else self._versions,
        )

    def _remove(self, libraries: Sequence[Path]) -> None:
        """What a batch of candidates left on the disk."""
        for library in libraries:
            library.unlink(missing_ok=True)
            operands_file(library).unlink(missing_ok=True)
        if self._binaries is not None:
            shutil.rmtree(self._binaries, ignore_errors=True)
            # Not the cache itself, which the driver has open.
            for left in Path(pocl_cache(str(self._binaries))).glob("*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def close(self) -> None:
        """See contract.Runner.close."""
        self._server.close()
        self._scratch.close()


def _own_version() -> str:
    try:
        return importlib.metadata.version("edgetune")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "source"


def _template_version(candidate: Candidate) -> int:
    try:
        return template_named(candidate.config.template).version
    except KeyError:  # the trial says so; there is no version to speak of
        return 0


def _default_memory_bytes(builders: int) -> int:
    """This machine's memory shared between all workers, within bounds."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    least, most = _MEMORY_BYTES
    return max(least, min(most, installed // (builders + 1)))


def import_plugins(modules: Sequence[str]) -> None:
    """Import modules that register templates. Raises BadInput if one cannot be."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise BadInput(f"plugin {name!r} cannot be imported: {error}") from error
