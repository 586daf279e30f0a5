"""Equal boards that measure the candidates of one run between them, and may go away and come back. Start at
`BoardRunner`.

A board that is lost is in quarantine until a kernel that is known to be good runs there again; the candidate that it
had goes to another board, or to the same one when it is back. One that is lost again and again is tried less and less
often.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tuner.devices import boards_of
from tuner.errors import BadInput, DeviceLost, TuneError
from tuner.measure.contract import Candidate
from tuner.measure.jobs import CompareJob, ExecutorSettings, RunDone, RunJob
from tuner.measure.laboratory import Laboratory
from tuner.measure.local import LocalRunner
from tuner.measure.processes import ProcessServer
from tuning_db.record import Failure, FailureKind, Trial, Workload

_T = TypeVar("_T")
# Seconds that all boards may be away: a reboot takes a minute or two, somebody who looks after it longer.
PATIENCE_SECONDS = 900.0
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # before each probe of a lost board, by its faults since a good trial
# Times that boards go away while the same candidate is measured, before that candidate is to blame.
_LOSSES = 2
_TRANSFER_SECONDS = 120.0


class Fleet:
    """Laboratories on equal boards, for several threads at a time. `losses`: how often a board was lost."""

    def __init__(
        self,
        server: ProcessServer,
        settings: ExecutorSettings,
        run_seconds: float,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        # A board ends a candidate at its deadline; ours is for one that says nothing, and for slow links.
        seconds = run_seconds + _TRANSFER_SECONDS
        names = boards_of(settings.device)
        self._labs = [Laboratory(server, replace(settings, device=name), seconds) for name in names]
        self._faults = dict.fromkeys(self._labs, 0)
        self._free: queue.Queue[Laboratory] = queue.Queue()
        self._busy: set[Laboratory] = set()
        self.losses = 0

    def __len__(self) -> int:
        return len(self._labs)

    def start(self) -> None:
        """Boards that are away may come later. Raises BadInput where none can run a kernel that is known to be good."""
        problems = []
        for lab in self._labs:
            try:
                lab.start()
                self._free.put(lab)
            except (DeviceLost, BadInput) as problem:
                problems.append(str(problem))
                self._quarantine(lab)
        if len(problems) == len(self._labs):
            raise BadInput("; ".join(problems))

    def run(self, job: RunJob) -> RunDone:
        """See Laboratory.run, on whichever board is free first."""
        done = self._on_a_board(lambda lab: lab.run(job))
        return RunDone((), done, None, 0) if isinstance(done, Failure) else done

    def compare(self, job: CompareJob, call_seconds: float) -> tuple[tuple[float, ...], ...] | Failure:
        """See Laboratory.compare: all of it on one board."""
        return self._on_a_board(lambda lab: lab.compare(job, call_seconds))

    def _on_a_board(self, measure: Callable[[Laboratory], _T]) -> _T | Failure:
        losses = 0
        while losses < _LOSSES:
            lab = self._next()
            try:
                done = measure(lab)
            except DeviceLost as lost:
                losses += lost.running
                message = str(lost)
                self._quarantine(lab)
                continue
            except BaseException:
                self._give_back(lab)
                raise
            self._faults[lab] = 0
            self._give_back(lab)
            return done
        return Failure(FailureKind.RUN, f"a board was lost {_LOSSES} times over it: {message}")

    def _next(self) -> Laboratory:
        """A board that is free, awaited. Raises TuneError where all of them stay away."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                lab = self._free.get(timeout=1.0)
                self._busy.add(lab)
                return lab
            if self._busy:  # in use, not away
                end = time.monotonic() + PATIENCE_SECONDS
        minutes = PATIENCE_SECONDS / 60
        raise TuneError(f"no board has answered for {minutes:.0f} minutes: run this again when one is back")

    def _give_back(self, lab: Laboratory) -> None:
        self._busy.discard(lab)
        self._free.put(lab)

    def _quarantine(self, lab: Laboratory) -> None:
        self._busy.discard(lab)
        self.losses += 1
        self._faults[lab] += 1
        threading.Thread(target=self._readmit, args=(lab,), daemon=True).start()

    def _readmit(self, lab: Laboratory) -> None:
        """Probe a board until it computes right again."""
        fault = self._faults[lab] - 1
        while not self._closed.is_set():
            self._sleep(_PAUSES[min(fault, len(_PAUSES) - 1)])
            try:
                lab.start()
            except (DeviceLost, TuneError):
                fault += 1
                continue
            self._free.put(lab)
            return

    def close(self) -> None:
        self._closed.set()


class BoardRunner(LocalRunner):
    """As LocalRunner, but candidates run on boards, each on the next that is free."""

    def _open_laboratory(self, settings: ExecutorSettings) -> Fleet:
        return Fleet(self._server, settings, self.options.run_seconds)

    def _measured(
        self,
        batch: Sequence[Candidate],
        libraries: Sequence[Path],
        failures: Sequence[Failure | None],
        best: dict[Workload, float | None],
    ) -> Iterator[Trial]:
        fleet = self._laboratory
        if len(fleet) == 1:
            yield from super()._measured(batch, libraries, failures, best)
            return
        began, before = time.perf_counter(), self.spent.run_seconds
        with ThreadPoolExecutor(len(fleet)) as pool:
            waiting: list[Future[Trial]] = [
                pool.submit(self._measure_with, candidate, library, failure, best)
                for candidate, library, failure in zip(batch, libraries, failures, strict=True)
            ]
            try:
                for future in waiting:
                    trial = future.result()
                    if trial.ok:
                        best[trial.workload] = min(best.get(trial.workload) or trial.seconds, trial.seconds)
                    yield trial
            finally:
                for future in waiting:
                    future.cancel()
        self.spent.run_seconds = before + time.perf_counter() - began  # not the sum over boards

    def _measure_with(
        self, candidate: Candidate, library: Path, failure: Failure | None, best: dict[Workload, float | None]
    ) -> Trial:
        """With the best time that is known when it begins."""
        return self._measure_one(candidate, library, failure, best.get(candidate.workload))

    def close(self) -> None:
        self._laboratory.close()
        super().close()
