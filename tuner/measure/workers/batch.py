"""`Building` runs the builds of one batch: all at once, or in a thread, so that the caller can wait for them one by
one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tuner.measure.messages import BuildJob
from tuner.measure.runner import Candidate
from tuner.measure.workers.build_pool import Builders, BuildStopped
from tuning_db.record import Failure


@dataclass(frozen=True)
class BuiltCandidate:
    """A candidate whose build has ended. `failure` says why there is no `library`, if there is none."""

    candidate: Candidate
    library: Path
    failure: Failure | None


class Building:
    """The builds of one batch. Call `run`, `start` or `ahead` once, and `close` at the end. `check` is called with
    every outcome and may raise."""

    def __init__(self, builders: Builders, jobs: Sequence[BuildJob], check: Callable[[Failure | None], object]) -> None:
        self.jobs = tuple(jobs)
        self._builders, self._check = builders, check
        self._outcomes: list[Future[Failure | None]] = [Future() for _ in jobs]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.ahead, name="building", daemon=True)

    def run(self) -> None:
        """Run all builds now. Raises what the builders and `check` raise."""
        self._builders.build(self.jobs, self._done)

    def start(self) -> None:
        """Run all builds in a thread, while the caller does something else. `failure` raises what they raise."""
        self._thread.start()

    def failure(self, place: int) -> Failure | None:
        """Wait for a job. Return why it failed, or None where its library is there. Raises BuildStopped
        after `close`."""
        return self._outcomes[place].result()

    def built(self, place: int) -> BuiltCandidate:
        """Wait for a candidate's job, as `failure` does, and return what became of it."""
        failure = self.failure(place)
        candidate = self.jobs[place].candidate
        assert candidate is not None  # batches have no preflight kernels
        return BuiltCandidate(candidate, self.libraries[place], failure)

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Return the files that the jobs write, in order."""
        return tuple(Path(job.library) for job in self.jobs)

    @property
    def is_done(self) -> bool:
        """Tell whether every outcome is known."""
        return all(outcome.done() for outcome in self._outcomes)

    def close(self) -> None:
        """Stop the builds that are not done. More calls do nothing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _done(self, place: int, failure: Failure | None) -> None:
        self._check(failure)
        self._outcomes[place].set_result(failure)

    def ahead(self) -> None:
        """Run all builds in the thread that calls this. `failure` raises what they raise."""
        try:
            if self._stop.is_set():
                raise BuildStopped
            self._builders.build(self.jobs, self._done, self._stop)
        except BaseException as error:  # whoever waits for a build hears of it
            for outcome in self._outcomes:
                if not outcome.done():
                    outcome.set_exception(error)
