"""`OfflineRunner` checks candidates in several processes with a deadline each, and returns their reports."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.devices import usable_cpus
from tuner.devices.profiles import Profile
from tuner.measure.messages import BuildJob
from tuner.measure.offline.compilers import compilers_of
from tuner.measure.offline.report import CandidateReport, Verdict
from tuner.measure.offline.worker import OfflineSettings
from tuner.measure.plugins import import_plugins
from tuner.measure.runner import Candidate, Closing
from tuner.measure.scratch import Scratch
from tuner.measure.workers.build_pool import BuilderPool, PoolOptions
from tuner.measure.workers.worker import ProcessServer
from tuning_db.record import Failure, FailureKind

_ENTRY = "tuner.measure.offline.worker:main"
_PRELOAD = ("tuner.measure.offline.worker",)


@dataclass(frozen=True)
class OfflineOptions:
    """Options that limit a check. `compile_seconds` is the deadline of one candidate with all of its compilers.
    `builders` is the number of processes (default: one per usable core). `memory_bytes` is how much one candidate may
    allocate. `plugins` are modules that register templates."""

    compile_seconds: float = 120.0
    builders: int | None = None
    memory_bytes: int = 4 << 30
    plugins: tuple[str, ...] = ()


class OfflineRunner(Closing):
    """Checks candidates for a device that is not here. Use it as a context manager: it owns processes and a folder."""

    def __init__(self, profile: Profile, options: OfflineOptions | None = None) -> None:
        """Raises BadInput where a compiler that the profile needs is missing, or a plugin cannot be imported."""
        options = options or OfflineOptions()
        compilers_of(profile)
        import_plugins(options.plugins)
        self._scratch = Scratch()
        self._server = ProcessServer(self._scratch.path, (*_PRELOAD, *options.plugins))
        cpus = usable_cpus()
        pool = PoolOptions(options.builders or len(cpus), tuple(cpus), options.compile_seconds, _ENTRY)
        self._pool = BuilderPool(self._server, OfflineSettings(profile.name, options.memory_bytes), pool)
        self._reports = 0

    def check(self, candidates: Sequence[Candidate]) -> list[CandidateReport]:
        """Return one report per candidate, in order."""
        jobs = [BuildJob(candidate, str(self._new_file())) for candidate in candidates]
        failures = self._pool.build(jobs)
        return [
            _read(Path(job.library)) if failure is None else _lost(candidate, failure)
            for job, candidate, failure in zip(jobs, candidates, failures, strict=True)
        ]

    def _new_file(self) -> Path:
        self._reports += 1
        return self._scratch.path / f"report{self._reports}"

    def close(self) -> None:
        """End every child process and remove every temporary file. More calls do nothing."""
        self._server.close()
        self._scratch.close()


def _read(path: Path) -> CandidateReport:
    report: CandidateReport = pickle.loads(path.read_bytes())
    path.unlink()
    return report


def _lost(candidate: Candidate, failure: Failure) -> CandidateReport:
    """Return the report of a candidate whose worker crashed or was stopped at its deadline."""
    late = failure.kind is FailureKind.COMPILE_TIMEOUT
    return CandidateReport(candidate.config, Verdict.TIMEOUT if late else Verdict.COMPILE, failure.message)
