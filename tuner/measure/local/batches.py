"""Builds candidates in batches and measures each batch in order. Start at `measure_in_order`.

Builds and measurements on one machine take turns because they would share the last-level cache and the memory bus, and
because two cores that build and then measure are faster than one that builds beside one that measures (a build takes
about four times as long as a measurement).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.measure.local.builder import LocalBuilder
from tuner.measure.local.measurer import Measurer
from tuner.measure.runner import Candidate
from tuning_db.record import Trial, Workload

Best = dict[Workload, float | None]  # the incumbent's seconds of each workload, None where there is none


def keep_best(best: Best, trial: Trial) -> None:
    """Keep `best` up to date: a trial that is faster than the incumbent takes its place."""
    if trial.ok:
        best[trial.workload] = min(best.get(trial.workload) or trial.seconds, trial.seconds)


def measure_in_order(
    builder: LocalBuilder,
    measurer: Measurer,
    candidates: Sequence[Candidate],
    best_seconds: float | None,
) -> Iterator[Trial]:
    """Yield the trials of candidates in order, see `Runner.measure`. A batch is measured when all of it is built or,
    where builds and measurements may overlap, while it is built."""
    best: Best = {candidates[0].workload: best_seconds} if candidates else {}
    for start in range(0, len(candidates), builder.batch_size):
        batch = candidates[start : start + builder.batch_size]
        with builder.batch(batch, ahead=builder.overlaps()) as building:
            for place, candidate in enumerate(batch):
                trial = measurer.measure(builder.wait(building, place), best.get(candidate.workload))
                keep_best(best, trial)
                yield trial


def compare(builder: LocalBuilder, measurer: Measurer, candidates: Sequence[Candidate]) -> list[Trial]:
    """Build candidates of one workload and measure them against each other, see `Runner.compare`."""
    if len({c.workload for c in candidates}) > 1:
        raise ValueError("only candidates of one workload can be compared")
    with builder.batch(candidates) as building:
        return measurer.compare([building.built(place) for place in range(len(candidates))])
