"""A search on a recorded space, without a device: `replay` runs one, `Replayed` says how it went."""

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
from tuner.session.loop import BATCH
from tuner.session.report import finite
from tuning_db.record import Config, Trial

# Of the best throughput: what searches are judged by.
SHARES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Replayed:
    """`delivered`: after each trial, what a session that ended there would deliver: the least recorded median among the
    configs that were measured fastest so far, which it would measure against each other (infinity while none ran);
    `clock`: simulated seconds of building and measuring up to it; `own_seconds`: what the searcher itself took, on this
    machine; `optimum`: the least recorded median; `failures`: what it went on without, and why; `trials`: all that was
    measured, in order."""

    delivered: Sequence[float]
    clock: Sequence[float]
    own_seconds: float
    optimum: float
    failures: Mapping[str, str] = field(default_factory=dict)
    trials: Sequence[Trial] = ()

    def trials_to(self, share: float) -> float:
        """Trials until what is delivered has `share` of the best throughput; infinity if it never has."""
        return next((i for i, s in enumerate(self.delivered, 1) if self.optimum >= share * s), math.inf)

    def seconds_to(self, share: float) -> float:
        """The same in simulated seconds."""
        trials = self.trials_to(share)
        return self.clock[int(trials) - 1] if math.isfinite(trials) else math.inf


def reached(runs: Sequence[Replayed]) -> dict[str, dict[str, float | None]]:
    """Median trials and simulated seconds to each of SHARES; None where half of the searches never got there."""
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

    `noise`: every measurement is drawn anew from the recorded times. Raises BadInput for an unknown
    searcher, TuneError where a library fails that it cannot do without.
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
    finalists: list[tuple[float, float]] = []  # as measured, and the recorded median
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
