"""`LocalRunner` measures on a device of this machine. It builds a batch with all cores, then measures the batch while
the builders are idle.

Builds and measurements take turns because they would share the last-level cache and the memory bus, and because two
cores that build and then measure are faster than one that builds beside one that measures (a build takes about four
times as long as a measurement).
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from board_agent.timing import Repetition
from templates.space import SearchSpace
from templates.template import template_named
from tuner.devices import Device, usable_cpus
from tuner.devices.parallel import pool_library
from tuner.errors import BadInput
from tuner.measure.codegen.toolchain import check_toolchain, machine_of, operands_file
from tuner.measure.messages import BuilderSettings, BuildJob, CompareJob, ExecutorSettings, RunDone, RunJob, WarmJob
from tuner.measure.ray.builders import RayBuilders
from tuner.measure.ray.search import RaySearchers
from tuner.measure.runner import Candidate, MeasureOptions, Runner, Spent
from tuner.measure.scratch import Scratch
from tuner.measure.targets.drift import Interval
from tuner.measure.workers.batch import Building
from tuner.measure.workers.build_pool import BuilderPool
from tuner.measure.workers.run_client import MeasureClient
from tuner.measure.workers.worker import ProcessServer
from tuner.search import Searcher, make_searcher
from tuner.versions import versions
from tuning_db.record import Failure, Trial, Workload, with_conditions

_PRELOAD = ("tuner.measure.workers.build_main", "tuner.measure.workers.run_main")
_MEMORY_BYTES = (512 << 20, 4 << 30)  # least and most that one candidate may allocate by default
_BATCH_PER_BUILDER = 8


class LocalRunner(Runner):
    """A Runner that measures on a device of this machine. Use it as a context manager: it owns processes and a scratch
    folder."""

    _client: Any = None

    def __init__(
        self,
        device: Device,
        options: MeasureOptions | None = None,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Start the processes, then build and run a kernel that is known to be good. `notice` is called from any thread
        with each line that a person should see meanwhile.

        Raises BadInput, with what to do, where the toolchain does not work or a plugin cannot be imported.
        """
        self.device = device
        self.notice = notice
        self.options = options or MeasureOptions()
        self.spent = Spent()
        self._versions = versions()
        linker = check_toolchain(self.device.target)
        import_plugins(self.options.plugins)
        self._scratch = Scratch()
        self._libraries = 0
        self._open: list[tuple[Trial, Interval]] = []  # trials that may yet turn out to be disturbed
        self._counting = threading.Lock()  # guards what several threads add to
        self._ray: RayBuilders | None = None
        self._searchers: RaySearchers | None = None
        # Held by local builds beside Ray's nodes and by measurements: on the CPU the two must not overlap.
        self._alone = threading.Lock() if device.kind.is_cpu else nullcontext()
        self._server = ProcessServer(self._scratch.path, (*_PRELOAD, *self.options.plugins))
        try:
            self._start(linker)
            if self.options.ray is not None:
                self._ray = self._join_ray(linker)
                self._searchers = self._on_nodes(self._ray, self.options.ray)
        except BaseException:
            self.close()
            raise

    def _start(self, linker: str) -> None:
        options, device, cpus = self.options, self.device, usable_cpus()
        builders = options.builders or len(cpus)
        memory = self._memory_bytes = options.memory_bytes or _default_memory_bytes(builders)
        target = str(device.target)
        form = device.kind.form(device.name)
        binaries = self._binaries = str(self._scratch.path / "binaries") if device.kind.keeps_binaries else None
        self._compiles_when_run = device.kind.compiles_when_run(device.name)
        self._batch = builders * _BATCH_PER_BUILDER
        # Builders take the cores from the other end, so that a single builder does not disturb the measuring cores.
        self._pool = BuilderPool(
            self._server,
            BuilderSettings(device.name, target, linker, device.threads, memory, binaries, form),
            builders,
            cpus=cpus[::-1],
            compile_seconds=options.compile_seconds,
        )
        preflight = self._preflight()
        settings = ExecutorSettings(
            device=device.name,
            target=target,
            threads=device.threads,
            cpus=tuple(device.kind.measuring_cores(device, cpus)),
            preflight=str(preflight),
            cold_bytes=options.cold_bytes or 2 * device.cache_bytes,
            tolerance=options.tolerance,
            memory_bytes=memory,
            seed=options.seed,
            binaries=binaries,
            pool=str(pool) if device.is_host and (pool := pool_library(machine_of(device.target))) else None,
            run_seconds=options.run_seconds,
            key=device.key,
        )
        self._client = self._open_client(settings)
        self._client.start()

    def _join_ray(self, linker: str) -> RayBuilders:
        target, threads = str(self.device.target), self.device.threads
        form = self.device.kind.form(self.device.name)
        settings = BuilderSettings(
            self.device.name, target, linker, threads, self._memory_bytes, binaries=None, form=form
        )
        joined = RayBuilders(
            self._server, self._pool, settings, options=self.options, say=self.notice, alone=self._alone
        )
        self._batch = max(self._batch, joined.slots * _BATCH_PER_BUILDER)
        return joined

    def _on_nodes(self, joined: RayBuilders, address: str) -> RaySearchers:
        return RaySearchers(
            self._server, address, self.options.plugins, nodes=lambda: joined.elsewhere, say=self.notice
        )

    def make_searcher(self, spec: str, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> Searcher:
        """Make a searcher as `tuner.search.make_searcher` does. Where builders run on other machines, the searcher
        computes on one of them."""
        make = make_searcher if self._searchers is None else self._searchers.make
        return make(spec, space, seed, history)

    def _open_client(self, settings: ExecutorSettings) -> Any:
        return MeasureClient(self._server, settings, self.options.run_seconds, notice=self.notice)

    def _preflight(self) -> Path:
        """Build a kernel that is known to be good. Raises BadInput if it cannot be built."""
        library = self._new_library()
        (failure,) = self._pool.build([BuildJob(None, str(library))])
        self._scratch.check_disk(failure)
        if failure is not None:
            raise BadInput(f"a kernel that is known to be good cannot be built here: {failure.message}")
        return library

    def _new_library(self) -> Path:
        self._libraries += 1
        return self._scratch.path / f"k{self._libraries}.so"

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """See `Runner.measure`."""
        wanted = list(candidates)
        best: dict[Workload, float | None] = {wanted[0].workload: best_seconds} if wanted else {}
        for start in range(0, len(wanted), self._batch):
            batch = wanted[start : start + self._batch]
            libraries = [self._new_library() for _ in batch]
            try:
                with closing(self._build(batch, libraries, ahead=self._overlaps())) as building:
                    yield from self._measured(batch, libraries, building, best)
            finally:
                self._remove(libraries)

    def _overlaps(self) -> bool:
        """Tell whether candidates may be measured while others are built. They may not where both would share this
        machine."""
        return self._ray is not None and self._ray.leave_this_machine()

    def _measured(
        self,
        batch: Sequence[Candidate],
        libraries: Sequence[Path],
        building: Building,
        best: dict[Workload, float | None],
    ) -> Iterator[Trial]:
        """Yield the trials of a batch in order, and keep `best` up to date: the incumbent's seconds of each
        workload."""
        for i, (candidate, library) in enumerate(zip(batch, libraries, strict=True)):
            started = time.perf_counter()
            failure = building.failure(i)
            self.spent.build_seconds += time.perf_counter() - started
            trial = self._measure_one(candidate, library, failure, best_seconds=best.get(candidate.workload))
            if trial.ok:
                best[candidate.workload] = min(best.get(candidate.workload) or trial.seconds, trial.seconds)
            yield trial

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """See `Runner.compare`."""
        if len({c.workload for c in candidates}) > 1:
            raise ValueError("only candidates of one workload can be compared")
        libraries = [self._new_library() for _ in candidates]
        check = replace(self.options.repetition, least=1, most=1)
        try:
            building = self._build(candidates, libraries)
            trials = [
                self._measure_one(c, library, building.failure(i), best_seconds=None, repetition=check)
                for i, (c, library) in enumerate(zip(candidates, libraries, strict=True))
            ]
            return self._alternate(candidates, libraries, trials)
        finally:
            self._remove(libraries)

    def _alternate(
        self, candidates: Sequence[Candidate], libraries: Sequence[Path], checked: Sequence[Trial]
    ) -> list[Trial]:
        """Return the checked trials with the times of the alternating rounds in place of the check's own times."""
        good = [i for i, trial in enumerate(checked) if trial.ok]
        if not good:
            return list(checked)
        started = time.perf_counter()
        job = CompareJob(
            tuple(candidates[i] for i in good), tuple(str(libraries[i]) for i in good), self.options.compare_rounds
        )
        result = self._client.compare(job, sum(checked[i].seconds for i in good))
        self.spent.run_seconds += time.perf_counter() - started
        trials = list(checked)
        for place, i in enumerate(good):
            if isinstance(result, Failure):
                trials[i] = replace(trials[i], times=(), failure=result)
            else:
                told = with_conditions(self._versions, result.throttled, result.condition)
                trials[i] = replace(trials[i], times=result.times[place], versions=told)
        return trials

    def _build(self, candidates: Sequence[Candidate], libraries: Sequence[Path], ahead: bool = False) -> Building:
        """Build all candidates and wait for them or, with `ahead`, start building them in the background."""
        jobs = [BuildJob(c, str(library)) for c, library in zip(candidates, libraries, strict=True)]
        building = Building(self._ray or self._pool, jobs, self._scratch.check_disk)
        if ahead:
            building.start()
            return building
        started = time.perf_counter()
        building.run()
        if self._compiles_when_run:
            self._pool.build([WarmJob(job.library) for i, job in enumerate(jobs) if building.failure(i) is None])
        self.spent.build_seconds += time.perf_counter() - started
        return building

    def _measure_one(
        self,
        candidate: Candidate,
        library: Path,
        failure: Failure | None,
        *,
        best_seconds: float | None,
        repetition: Repetition | None = None,
    ) -> Trial:
        """Return the trial of a candidate whose build has ended; `failure` says why it failed, if it did. A
        `repetition` is given where the trial only checks the candidate before a comparison."""
        started = time.perf_counter()
        done, interval = RunDone((), failure, None, 0), Interval()
        if failure is None:
            job = RunJob(candidate, str(library), repetition or self.options.repetition, best_seconds)
            with self._alone:
                done, interval = self._client.run(job)
        trial = Trial(
            workload=candidate.workload,
            device=self.device.key,
            config=candidate.config,
            template_version=_template_version(candidate),
            times=done.times,
            failure=done.failure,
            error=done.error,
            versions=with_conditions(self._versions, done.throttled, done.condition),
        )
        with self._counting:
            self.spent.check_seconds += done.check_seconds
            if self.width == 1:  # else `measure` itself times all candidates together
                self.spent.run_seconds += time.perf_counter() - started
            if trial.ok and not trial.throttled and repetition is None:  # else it is only the check of a comparison
                self._open.append((trial, interval))
        return trial

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

    def _remove(self, libraries: Sequence[Path]) -> None:
        """Delete what a batch of candidates left on the disk."""
        for library in libraries:
            library.unlink(missing_ok=True)
            operands_file(library).unlink(missing_ok=True)
        if self._binaries is not None:
            self.device.kind.clear_binaries(self._binaries)

    def close(self) -> None:
        """See `Runner.close`."""
        if self._searchers is not None:
            self._searchers.close()
        if self._ray is not None:
            self._ray.close()
        self._server.close()
        self._scratch.close()


def _template_version(candidate: Candidate) -> int:
    try:
        return template_named(candidate.config.template).version
    except KeyError:  # no such template: the trial's failure says so
        return 0


def _default_memory_bytes(builders: int) -> int:
    """Share this machine's memory between all workers, within the bounds of _MEMORY_BYTES."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    least, most = _MEMORY_BYTES
    return max(least, min(most, installed // (builders + 1)))


def import_plugins(modules: Sequence[str]) -> None:
    """Import modules that register templates. Raises BadInput if one cannot be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise BadInput(f"plugin {name!r} cannot be imported: {error}") from error
