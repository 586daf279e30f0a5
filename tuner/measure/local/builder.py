"""`LocalBuilder` builds the candidates of a run on this machine and, where the run has a Ray cluster, on its nodes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

from tuner.devices import Device, usable_cpus
from tuner.measure.codegen.toolchain import check_toolchain, operands_file
from tuner.measure.messages import BuilderSettings, BuildJob, WarmJob
from tuner.measure.plugins import import_plugins
from tuner.measure.ray.builders import RayBuilders
from tuner.measure.runner import Candidate, Closing, MeasureOptions, Spent
from tuner.measure.scratch import Scratch
from tuner.measure.workers.batch import Building, BuiltCandidate
from tuner.measure.workers.build_pool import BuilderPool, PoolOptions
from tuner.measure.workers.worker import ProcessServer

_PRELOAD = ("tuner.measure.workers.build_main", "tuner.measure.workers.run_main")
_MEMORY_BYTES = (512 << 20, 4 << 30)  # least and most that one candidate may allocate by default
_BATCH_PER_BUILDER = 8


class LocalBuilder(Closing):
    """Builds candidates for a device. It owns processes, which `server` starts, and a scratch folder for libraries.

    `batch_size` is how many candidates are best built together. `memory_bytes` is what one candidate may allocate, and
    `binaries` is where a driver's compiled programs go, None where there are none. `alone` is held by whatever must not
    overlap on this machine: builds beside Ray's nodes, and measurements.
    """

    def __init__(
        self,
        device: Device,
        options: MeasureOptions,
        *,
        spent: Spent,
        notice: Callable[[str], object],
        measured_here: bool = True,
    ) -> None:
        """Start the processes. The seconds of builds are added to `spent`. `notice` is called with each line on what
        becomes of Ray's nodes. `measured_here` says whether this machine measures what is built.

        Raises BadInput, with what to do, where the toolchain does not work or a plugin cannot be imported.
        """
        self._device, self._options, self._spent, self._notice = device, options, spent, notice
        self._measured_here = measured_here
        self._linker = check_toolchain(device.target)
        import_plugins(options.plugins)
        self._scratch = Scratch()
        self._ray: RayBuilders | None = None
        self.alone: AbstractContextManager[object] = threading.Lock() if device.kind.is_cpu else nullcontext()
        self.server = ProcessServer(self._scratch.path, (*_PRELOAD, *options.plugins))
        cpus = usable_cpus()
        builders = options.builders or len(cpus)
        self.memory_bytes = options.memory_bytes or _default_memory_bytes(builders)
        self.batch_size = builders * _BATCH_PER_BUILDER
        self._compiles_when_run = device.kind.compiles_when_run(device.name)
        self.binaries = str(self._scratch.path / "binaries") if device.kind.keeps_binaries else None
        # Builders take the cores from the other end, so that a single builder does not disturb the measuring cores.
        pool = PoolOptions(builders, cpus=tuple(cpus[::-1]), compile_seconds=options.compile_seconds)
        self._pool = BuilderPool(self.server, self._settings(self.binaries), pool)

    def _settings(self, binaries: str | None) -> BuilderSettings:
        device = self._device
        target, form = str(device.target), device.kind.form(device.name)
        return BuilderSettings(device.name, target, self._linker, device.threads, self.memory_bytes, binaries, form)

    @property
    def folder(self) -> Path:
        """Return the folder in which libraries are."""
        return self._scratch.path

    def preflight(self) -> Path:
        """Build a kernel that is known to be good, and return its library. Raises BadInput if it cannot be built."""
        return self._pool.preflight(self._scratch)

    # Ray

    def join_ray(self) -> None:
        """Join the cluster that the options name, if they do, so that its nodes build too. Raises BadInput where there
        is no cluster, or none of its nodes can build for this machine."""
        if self._options.ray is None:
            return
        settings = self._settings(binaries=None)
        self._ray = RayBuilders(
            self.server, self._pool, settings, options=self._options, say=self._notice, alone=self.alone
        )
        self.batch_size = max(self.batch_size, self._ray.slots * _BATCH_PER_BUILDER)

    @property
    def nodes_elsewhere(self) -> tuple[tuple[str, str], ...]:
        """Return the nodes on other machines that build for this run, by id and name."""
        return () if self._ray is None else self._ray.elsewhere

    def overlaps(self) -> bool:
        """Tell whether candidates may be measured while others are built. They may not where both would share this
        machine; where Ray's other nodes can build all, they do so from now on."""
        return not self._measured_here or (self._ray is not None and self._ray.leave_this_machine())

    # Batches

    @contextmanager
    def batch(self, candidates: Sequence[Candidate], *, ahead: bool = False) -> Iterator[Building]:
        """Build all candidates and wait for them or, with `ahead`, start building them in the background. The end of
        the `with` block stops builds that are not done, and deletes what the batch left on the disk."""
        building = self.prepare(candidates)
        try:
            with closing(building):
                if ahead:
                    building.start()
                else:
                    self._build(building)
                yield building
        finally:
            self.remove(building.libraries)

    def prepare(self, candidates: Sequence[Candidate]) -> Building:
        """Return the builds of a batch, which the caller runs."""
        jobs = [BuildJob(candidate, str(self._scratch.new_library())) for candidate in candidates]
        return Building(self._ray or self._pool, jobs, self._scratch.check_disk)

    def _build(self, building: Building) -> None:
        started = time.perf_counter()
        building.run()
        if self._compiles_when_run:
            jobs = enumerate(building.jobs)
            self._pool.build([WarmJob(job.library) for i, job in jobs if building.failure(i) is None])
        self._spent.build_seconds += time.perf_counter() - started

    def wait(self, building: Building, place: int) -> BuiltCandidate:
        """Wait for a build, while nothing is measured. Raises BuildStopped after the batch was closed."""
        started = time.perf_counter()
        built = building.built(place)
        self._spent.build_seconds += time.perf_counter() - started
        return built

    def remove(self, libraries: Sequence[Path]) -> None:
        """Delete what a batch of candidates left on the disk."""
        for library in libraries:
            library.unlink(missing_ok=True)
            operands_file(library).unlink(missing_ok=True)
        if self.binaries is not None:
            self._device.kind.clear_binaries(self.binaries)

    def close(self) -> None:
        if self._ray is not None:
            self._ray.close()
        self.server.close()
        self._scratch.close()


def _default_memory_bytes(builders: int) -> int:
    """Share this machine's memory between all workers, within the bounds of _MEMORY_BYTES."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    least, most = _MEMORY_BYTES
    return max(least, min(most, installed // (builders + 1)))
