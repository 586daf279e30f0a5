"""`ReplayRunner` is a Runner that answers from what is known, without a device. It runs searchers on
recorded spaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tuner.measure.runner import Candidate, Runner, Spent
from tuning_db.record import DeviceKey, Failure, FailureKind, Trial

Answer = Callable[[Candidate], tuple[float, ...] | Failure]


def recorded(trials: Iterable[Trial]) -> Answer:
    """Make an Answer from trials: the latest trial of each config counts. A config that was never measured
    is invalid."""
    known: dict[tuple[str, str], Trial] = {(t.workload.key, t.config.key): t for t in trials}

    def answer(candidate: Candidate) -> tuple[float, ...] | Failure:
        trial = known.get((candidate.workload.key, candidate.config.key))
        if trial is None:
            return Failure(FailureKind.INVALID, "this config was not recorded")
        return trial.failure or trial.times

    return answer


def computed(seconds: Callable[[Candidate], float]) -> Answer:
    """Make an Answer from a function that gives a candidate's seconds. Infinity is a failure to compile."""

    def answer(candidate: Candidate) -> tuple[float, ...] | Failure:
        found = seconds(candidate)
        return (found,) if math.isfinite(found) else Failure(FailureKind.COMPILE, "does not compile")

    return answer


def trial_of(candidate: Candidate, device: DeviceKey, version: int, result: tuple[float, ...] | Failure) -> Trial:
    """Return the trial of a candidate whose result, times or a failure, is known. Its output is taken to be right."""
    if isinstance(result, Failure):
        return Trial(candidate.workload, device, candidate.config, version, failure=result)
    return Trial(candidate.workload, device, candidate.config, version, times=result, error=0.0)


class ReplayRunner(Runner):
    """A Runner (see `tuner.measure.runner.Runner`) that answers from known results.

    `template_versions` has the version of each template that trials note (default: 1). `trial_seconds` is what a trial
    takes on the virtual clock, `clock()`, which stands still otherwise. A session on that clock plays hours in moments.
    A recorded space answers with its own results and costs (`tuner.measure.replay.recorded.RecordedSpace.answer`).
    """

    def __init__(
        self,
        device: DeviceKey,
        answer: Answer,
        template_versions: Mapping[str, int] | None = None,
        trial_seconds: float | Callable[[Candidate], float] = 0.12,
    ) -> None:
        self._device = device
        self._answer = answer
        self._template_versions = template_versions or {}
        self._trial_seconds = trial_seconds
        self.spent = Spent()

    def clock(self) -> float:
        """Return the virtual seconds since the start."""
        return self.spent.run_seconds

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        for candidate in candidates:
            yield self._trial(candidate)

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        return [self._trial(c) for c in candidates]

    def _trial(self, candidate: Candidate) -> Trial:
        took = self._trial_seconds
        self.spent.run_seconds += took(candidate) if callable(took) else took
        version = self._template_versions.get(candidate.config.template, 1)
        return trial_of(candidate, self._device, version, self._answer(candidate))

    def close(self) -> None:
        """Do nothing: there is nothing to end."""
