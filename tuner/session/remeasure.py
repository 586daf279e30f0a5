"""Check whether a database's records of a device still hold: some of its best configs are built, checked and timed
again. Start at `remeasure`."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import vision_ops  # noqa: F401  (registers the built-in templates and operators)
from templates.template import search_space
from tuner.devices import Device
from tuner.measure import Candidate, Runner
from tuner.session.journal import journalled
from tuner.session.task_trials import is_current
from tuning_db.record import Trial, Workload, tolerance_of
from tuning_db.store import Store

SEARCHER = "verify"  # the name of the searcher in these trials


@dataclass(frozen=True)
class Remeasured:
    """A best trial as it was stored, and the trial that measures the same kernel now."""

    stored: Trial
    now: Trial

    @property
    def ratio(self) -> float | None:
        """Return the time now over the time then, or None where there is no time now."""
        return self.now.seconds / self.stored.seconds if self.now.ok else None

    @property
    def wrong(self) -> bool:
        """Return whether the kernel does not compute what it should, or does not run at all. Failures of the connection
        or the device do not count."""
        if self.now.failure is not None:
            return self.now.failure.kind.tells_of_config
        return self.now.error is None or self.now.error > tolerance_of(self.now.workload.dtype)

    def drifted(self, factor: float) -> bool:
        """Return whether the two times differ by more than this factor, in either direction."""
        return self.ratio is not None and abs(math.log(self.ratio)) > math.log(factor)

    def as_dict(self) -> dict[str, Any]:
        failure = self.now.failure
        return {
            "workload": self.stored.workload.as_dict(),
            "config": self.stored.config.as_dict(),
            "created": self.stored.created.isoformat(),
            "stored_seconds": self.stored.seconds,
            "seconds": self.now.seconds if self.now.ok else None,
            "ratio": self.ratio,
            "error": self.now.error,
            "failure": None if failure is None else {"kind": str(failure.kind), "message": failure.message},
            "wrong": self.wrong,
        }


def current_bests(store: Store, device: Device) -> list[Trial]:
    """Return the best trial of every workload on this very device. Only trials count whose template is here, in the
    version that was measured."""
    found = (_current_best(store, device, workload) for workload in store.workloads(device.key))
    return [trial for trial in found if trial is not None]


def _current_best(store: Store, device: Device, workload: Workload) -> Trial | None:
    space = search_space(workload, device.target)
    if space is None:  # records of steps and copies belong to no template
        return None
    names = {s.template for s in space.spaces}

    def usable(trial: Trial) -> bool:
        return is_current(trial, names) and space.is_valid(trial.config)

    return store.best(workload, device.key, usable=usable)


def sample(bests: Sequence[Trial], count: int, seed: int) -> list[Trial]:
    """Return up to `count` of the trials, drawn at random. The same seed draws the same trials."""
    return random.Random(seed).sample(bests, min(count, len(bests)))


def remeasure(bests: Sequence[Trial], store: Store, runner: Runner, seed: int = 0) -> Iterator[Remeasured]:
    """Measure each config once more, add the new trial to the store, and yield both. Raises DatabaseError if it cannot
    be stored."""
    for stored in bests:
        with journalled(store, stored.device, stored.workload, [stored.config]):
            (trial,) = runner.measure([Candidate(stored.workload, stored.config)])
            now = replace(trial, seed=seed, searcher=SEARCHER)
            store.add(now)
        yield Remeasured(stored, now)
