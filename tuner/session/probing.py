"""Check on the device at hand whether configs hold that others have measured on their devices. Start at `probe`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import vision_ops  # noqa: F401  (registers the built-in templates and operators)
from templates.template import search_space
from tuner.devices import Device
from tuner.measure import Candidate, Runner
from tuner.session.journal import journalled
from tuning_db.record import Config, Trial, tolerance_of
from tuning_db.store import Store

SEARCHER = "pack"  # the name of the searcher in these trials
_SLOWER = 1.1  # a config that takes so many times as long as the untuned one does not hold


@dataclass(frozen=True)
class Probed:
    """A config that another device measured (`given`), what it takes here, and what the untuned config takes."""

    given: Trial
    now: Trial
    untuned: Trial

    @property
    def slower(self) -> bool:
        """Tell whether the config takes clearly longer than the untuned one."""
        return self.gain is not None and self.gain > _SLOWER

    @property
    def fault(self) -> str:
        """Return why the config does not hold here, or "". A device or a connection that fails is no fault of it."""
        failure = self.now.failure
        if failure is not None:
            return f"it fails here: {failure.kind}: {failure.message}" if failure.kind.tells_of_config else ""
        allowed = tolerance_of(self.now.workload.dtype)
        if self.now.error is None or self.now.error > allowed:
            return f"its error is {self.now.error} here, and {allowed:g} is allowed"
        return f"it takes {self.gain:.2f} times as long as the untuned config here" if self.slower else ""

    @property
    def gain(self) -> float | None:
        """Return the config's time over that of the untuned one, or None where one of them has no time."""
        return self.now.seconds / self.untuned.seconds if self.now.ok and self.untuned.ok else None


def probe(
    trials: Sequence[Trial], device: Device, store: Store, runner: Runner, *, count: int, seed: int = 0
) -> Iterator[Probed]:
    """Measure `count` configs that the device can run, drawn at random, beside the untuned ones. As long as one of a
    draw does not hold, as many more are drawn. What is measured is added to the store, as trials of this device.

    Raises DatabaseError if it cannot be stored.
    """
    shuffled = random.Random(seed).sample(trials, len(trials))
    usable = ((trial, first) for trial in shuffled if (first := _untuned(trial, device)) is not None)
    while draw := list(islice(usable, count)):
        faulty = False
        for trial, first in draw:
            probed = _measured(trial, first, device, store, runner, seed=seed)
            if probed.slower:  # other programs may have slowed it down
                probed = _measured(trial, first, device, store, runner, seed=seed)
            faulty = faulty or bool(probed.fault)
            yield probed
        if not faulty:
            return


def _untuned(trial: Trial, device: Device) -> Config | None:
    """Return the config that the device would use without any trial, or None if it cannot use that of the trial."""
    space = search_space(trial.workload, device.target)
    if space is None or not space.is_valid(trial.config):
        return None
    return space.seed_configs()[0]


def _measured(given: Trial, first: Config, device: Device, store: Store, runner: Runner, *, seed: int) -> Probed:
    configs = list(dict.fromkeys([given.config, first]))
    with journalled(store, device.key, given.workload, configs):
        found = runner.measure([Candidate(given.workload, config) for config in configs])
        now = [replace(trial, seed=seed, searcher=SEARCHER) for trial in found]
        store.add_together(now)
    return Probed(given, now[0], now[-1])
