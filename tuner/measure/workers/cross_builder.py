"""`CrossBuilder` builds candidates for a device on which nothing is run from here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.devices import Device, usable_cpus
from tuner.measure.codegen.toolchain import check_toolchain
from tuner.measure.messages import BuilderSettings, BuildJob
from tuner.measure.runner import Candidate, Closing, MeasureOptions
from tuner.measure.scratch import Scratch
from tuner.measure.workers.build_pool import BuilderPool, PoolOptions
from tuner.measure.workers.worker import ProcessServer
from tuning_db.record import Failure

_MEMORY_BYTES = 2 << 30  # bytes that one build may allocate


class CrossBuilder(Closing):
    """Builds candidates for a device that is not here. It is a context manager that owns processes and a scratch
    folder, in which libraries stay until it is closed."""

    def __init__(self, device: Device, options: MeasureOptions) -> None:
        """Raises BadInput where the toolchain for the device does not work."""
        linker, cpus = check_toolchain(device.target), usable_cpus()
        self._scratch = Scratch()
        self._server = ProcessServer(self._scratch.path, ("tuner.measure.workers.build_main", *options.plugins))
        memory = options.memory_bytes or _MEMORY_BYTES
        form = device.kind.form(device.name)
        settings = BuilderSettings(device.name, str(device.target), linker, device.threads, memory, None, form)
        pool = PoolOptions(options.builders or len(cpus), tuple(cpus), options.compile_seconds)
        self._pool = BuilderPool(self._server, settings, pool)

    def build(self, candidates: Sequence[Candidate]) -> list[Path | Failure]:
        """Build candidates. Return the library of each, or why there is none. Raises BadInput where the
        disk is full."""
        jobs = [BuildJob(candidate, str(self._scratch.new_library())) for candidate in candidates]
        failures = self._pool.build(jobs)
        for failure in failures:
            self._scratch.check_disk(failure)
        return [Path(job.library) if failure is None else failure for job, failure in zip(jobs, failures, strict=True)]

    def preflight(self) -> Path:
        """Build a kernel that is known to be good, and return its library. Raises BadInput if it cannot be built."""
        return self._pool.preflight(self._scratch)

    def close(self) -> None:
        self._server.close()
        self._scratch.close()
