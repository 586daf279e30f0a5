"""Keep the trials of one task, and answer what follows from them. Start at `TaskTrials`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from templates.template import template_named
from tuner.session.budget import SIGNIFICANT
from tuning_db.record import Config, Trial


def is_current(trial: Trial, templates: Iterable[str]) -> bool:
    """Return whether a recorded trial still counts: its template must be one of `templates`, in its current version."""
    template = trial.config.template
    return template in templates and template_named(template).version == trial.template_version


class TaskTrials:
    """The trials of one task in all sessions, in the order in which they were recorded. Everything here follows from
    them, so a session that is run again reaches the same conclusions.

    Of each config, the first trial counts as an attempt, and the latest trial that tells of the config is the one that
    ranks it. The best trial is always the first of `standing`.
    """

    def __init__(self, recorded: Iterable[Trial]) -> None:
        self.repeats = 0  # trials of known configs since the last new one
        self._recorded: list[Trial] = []
        self._tried: dict[str, Trial] = {}  # the first trial of each config, by key
        self._latest: dict[str, Trial] = {}  # the trial of each config that counts, by key, oldest first
        self._times = Counter[str]()  # successful trials of each config, by key
        self._best: Trial | None = None  # the first of `standing`
        self._curve: list[float] = []  # best seconds after each config tried
        self._improved = 0  # configs tried up to the last significant improvement
        for trial in recorded:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """Add the newest trial."""
        self._recorded.append(trial)
        key = trial.config.key
        if trial.ok or key not in self._latest or _is_telling(trial):
            self._latest.pop(key, None)  # of equally fast ones the oldest is the best, as in the database
            self._latest[key] = trial
            self._rank(trial)
        self._times[key] += trial.ok
        if key in self._tried:
            self.repeats += 1
        else:
            self._tried[key] = trial
            self.repeats = 0
            self._extend_curve(trial)

    def _extend_curve(self, trial: Trial) -> None:
        significant = self._curve[self._improved - 1] * (1 - SIGNIFICANT) if self._improved else math.inf
        best = min(trial.seconds, self._curve[-1]) if self._curve else trial.seconds
        self._curve.append(best)
        if best < significant:
            self._improved = len(self._curve)

    def replace(self, old: Trial, new: Trial) -> None:
        """Replace a trial by the same trial with its throttled flag."""
        self._recorded[self._recorded.index(old)] = new
        for known in (self._tried, self._latest):
            if known[old.config.key] == old:
                known[old.config.key] = new
        self._rank(self._latest[old.config.key])

    def _rank(self, latest: Trial) -> None:
        """Update the best trial after a config got another trial that counts. The best is kept, because it is looked up
        after every trial."""
        if self._best is None or latest.config.key == self._best.config.key:
            self._best = min((t for t in self._latest.values() if t.ok), key=_rank, default=None)
        elif latest.ok and _rank(latest) < _rank(self._best):
            self._best = latest

    @property
    def recorded(self) -> Sequence[Trial]:
        """Return all trials, oldest first."""
        return self._recorded

    @property
    def tried(self) -> int:
        """Return the number of different configs that were tried."""
        return len(self._tried)

    @property
    def since_improved(self) -> int:
        """Return the number of configs tried since the last significant improvement."""
        return self.tried - self._improved

    @property
    def best_seconds(self) -> float:
        """Return the time of the best config, or infinity where nothing was measured."""
        return math.inf if self._best is None else self._best.seconds

    @property
    def first_seconds(self) -> float:
        """Return the time of the first config that ran, or infinity if none did. That config is a seed: the template's
        author would have chosen it without tuning."""
        return next((t.seconds for t in self._tried.values() if t.ok), math.inf)

    @property
    def curve(self) -> Sequence[float]:
        """Return the best seconds after each config tried."""
        return self._curve

    def standing(self) -> list[Trial]:
        """Return one trial of every config that works, namely the one that counts (its latest), fastest first. Trials
        that were measured while the device did not keep its speed come last."""
        return sorted((t for t in self._latest.values() if t.ok), key=_rank)

    def is_confirmed(self, config: Config) -> bool:
        """Return whether the config has been measured more than once."""
        return self._times[config.key] > 1

    def has_tried(self, config: Config) -> bool:
        return config.key in self._tried

    def failures(self) -> Mapping[str, int]:
        """Return the number of failed trials by kind."""
        return Counter(str(t.failure.kind) for t in self._recorded if t.failure is not None)

    def first_error(self) -> str | None:
        return next((f"{t.failure.kind}: {t.failure.message}" for t in self._recorded if t.failure is not None), None)


def _rank(trial: Trial) -> tuple[bool, float]:
    return trial.throttled, trial.seconds


def _is_telling(trial: Trial) -> bool:
    return trial.failure is not None and trial.failure.kind.tells_of_config
