"""Whether what a database says of a device still holds: some of its bests are built, checked and timed once more."""

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
from tuner.session.task import is_current
from tuning_db.record import FailureKind, Trial, Workload, tolerance_of
from tuning_db.store import Store

SEARCHER = "verify"  # as the trials note it
_NOT_THE_KERNELS_FAULT = (FailureKind.UPLOAD, FailureKind.DEVICE_LOST)


@dataclass(frozen=True)
class Remeasured:
    """A best as it was stored, and the same kernel now."""

    stored: Trial
    now: Trial

    @property
    def ratio(self) -> float | None:
        """Of the time now to the time then; None where there is no time now."""
        return self.now.seconds / self.stored.seconds if self.now.ok else None

    @property
    def wrong(self) -> bool:
        """The kernel does not compute what it should, or not at all."""
        if self.now.failure is not None:
            return self.now.failure.kind not in _NOT_THE_KERNELS_FAULT
        return self.now.error is None or self.now.error > tolerance_of(self.now.workload.dtype)

    def drifted(self, factor: float) -> bool:
        """Whether the two times differ by more than this factor, in either direction."""
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
    """The best of every workload on this very device whose template is here, in the version that was measured."""
    found = (_current_best(store, device, workload) for workload in store.workloads(device.key))
    return [trial for trial in found if trial is not None]


def _current_best(store: Store, device: Device, workload: Workload) -> Trial | None:
    space = search_space(workload, device.target)
    if space is None:  # what is known of steps and copies is no kernel of a template
        return None
    names = {s.template for s in space.spaces}

    def usable(trial: Trial) -> bool:
        return is_current(trial, names) and space.is_valid(trial.config)

    return store.best(workload, device.key, usable=usable)


def sample(bests: Sequence[Trial], count: int, seed: int) -> list[Trial]:
    """Up to so many of them, at random; the same for the same seed."""
    return random.Random(seed).sample(bests, min(count, len(bests)))


def remeasure(bests: Sequence[Trial], store: Store, runner: Runner, seed: int = 0) -> Iterator[Remeasured]:
    """Measure each once more, and add what comes out to the history. Raises DatabaseError if it cannot be stored."""
    for stored in bests:
        with journalled(store, stored.device, stored.workload, [stored.config]):
            (trial,) = runner.measure([Candidate(stored.workload, stored.config)])
            now = replace(trial, seed=seed, searcher=SEARCHER)
            store.add(now)
        yield Remeasured(stored, now)
