"""Run a search on a recorded space, without a device. `replay` runs one, and `Replayed` says how it went."""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tuner.errors import SearchFailed, TuneError
from tuner.measure.replay.recorded import RecordedSpace
from tuner.measure.replay.runner import ReplayRunner
from tuner.measure.runner import Candidate
from tuner.search import Experience, Searcher, make_searcher
from tuner.session.final import FINALISTS
from tuner.session.report import finite
from tuner.session.session_budget import BATCH
from tuning_db.record import Config, Trial

# Searches are judged by the trials and seconds that they need to reach these shares of the best throughput.
SHARES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Replayed:
    """The course that a replayed search took.

    `delivered` has, after each trial, the time that a session which ended there would deliver. That session would
    compare the configs that were measured fastest so far, so it is the least recorded median among them (infinity while
    none ran). `clock` has the simulated seconds of building and measuring up to each trial. `own_seconds` is the time
    that the searcher itself took, on this machine. `optimum` is the least recorded median. `failures` says what the
    searcher went on without, and why. `trials` are all that were measured, in order.
    """

    delivered: Sequence[float]
    clock: Sequence[float]
    own_seconds: float
    optimum: float
    failures: Mapping[str, str] = field(default_factory=dict)
    trials: Sequence[Trial] = ()

    def trials_to(self, share: float) -> float:
        """Return the trials until what is delivered has `share` of the best throughput, or infinity if it never has."""
        return next((i for i, s in enumerate(self.delivered, 1) if self.optimum >= share * s), math.inf)

    def seconds_to(self, share: float) -> float:
        """Return the simulated seconds until what is delivered has `share` of the best throughput, or infinity if it
        never has."""
        trials = self.trials_to(share)
        return self.clock[int(trials) - 1] if math.isfinite(trials) else math.inf


def reached(runs: Sequence[Replayed]) -> dict[str, dict[str, float | None]]:
    """Return the median trials and simulated seconds to each of SHARES. A median is None where half of the searches
    never got there."""
    return {
        "trials_to": {str(share): finite(median(r.trials_to(share) for r in runs)) for share in SHARES},
        "seconds_to": {str(share): finite(median(r.seconds_to(share) for r in runs)) for share in SHARES},
    }


def _proposed(search: Searcher, name: str, n: int) -> list[Config]:
    try:
        return search.propose(n)
    except SearchFailed as error:
        raise TuneError(f"{name} failed: {error}") from error


def replay(
    recorded: RecordedSpace,
    searcher: str,
    seed: int,
    *,
    trials: int,
    noise: bool = True,
    experience: Sequence[Experience] = (),
) -> Replayed:
    """Search with `searcher` (a name with its options) until `trials` configs are measured or the space is exhausted.

    With `noise`, every measurement is drawn anew from the recorded times. The searcher learns from `experience` first.
    Raises BadInput for an unknown searcher, and TuneError if a library fails that the searcher cannot do without.
    """
    began = time.perf_counter()
    search = make_searcher(searcher, recorded.space, seed)
    if experience:
        search.learn_from(experience)
    answer = recorded.answer(seed if noise else None)
    truth = recorded.medians
    runner = ReplayRunner(recorded.device, answer, recorded.versions, answer.cost)
    delivered: list[float] = []
    clock: list[float] = []
    measured: list[Trial] = []
    finalists: list[tuple[float, float]] = []  # seconds as measured, and the recorded median
    while len(delivered) < trials:
        configs = _proposed(search, searcher, min(BATCH, trials - len(delivered)))
        if not configs:
            break
        for trial in runner.measure([Candidate(recorded.workload, c) for c in configs]):
            measured.append(trial)
            if trial.ok:
                insort(finalists, (trial.seconds, truth[trial.config.key]))
                del finalists[FINALISTS:]
            delivered.append(min((known for _, known in finalists), default=math.inf))
            clock.append(runner.clock())
        search.observe(measured[-len(configs) :])
    own = time.perf_counter() - began
    return Replayed(delivered, clock, own, recorded.best_seconds, search.failures, measured)
