"""Keep what is known about a task that is being tuned. Start at `TaskState`. Everything here follows from the recorded
trials, in their order, so a session that is run again reaches the same conclusions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from templates.space import SearchSpace
from templates.template import template_named
from tuner.search import Searcher
from tuner.session.budget import FLOOR, SIGNIFICANT, Preset
from tuner.tasks import Task
from tuning_db.record import Config, Trial


def is_current(trial: Trial, templates: Iterable[str]) -> bool:
    """Return whether a recorded trial still counts: its template must be one of `templates`, in its current version."""
    template = trial.config.template
    return template in templates and template_named(template).version == trial.template_version


@dataclass(eq=False)
class TaskState:
    """The state that a task is in during a session. `trials` are the task's recorded ones (current templates only),
    oldest first. `space` is None where no template applies."""

    task: Task
    space: SearchSpace | None
    trials: list[Trial]
    searcher: Searcher | None = None
    exhausted: bool = False
    known: int = field(init=False)  # configs that other sessions tried, before this one and meanwhile
    incumbent: Config | None = field(init=False)  # the best config before this session
    comparison_failure: str | None = None
    skipped: bool = False  # a person has asked to skip the task
    suspects: list[Config] = field(default_factory=list)  # configs that may have killed a session
    repeats: int = field(init=False, default=0)  # trials of known configs since the last new one
    pending: dict[str, Config] = field(init=False, default_factory=dict)  # configs that are being measured, by key
    unobserved: list[Trial] = field(init=False, default_factory=list)  # trials that the searcher has not seen yet
    _tried: dict[str, Trial] = field(init=False, default_factory=dict)  # the first trial of each config, by key
    _latest: dict[str, Trial] = field(init=False, default_factory=dict)  # the trial of each config that counts, by key
    _times: Counter[str] = field(init=False, default_factory=Counter)  # successful trials of each config, by key
    _best: Trial | None = field(init=False, default=None)  # the first of `standing`
    _improved: int = field(init=False, default=0)  # configs tried up to the last significant improvement
    _curve: list[float] = field(init=False, default_factory=list)  # best seconds after each config tried

    def __post_init__(self) -> None:
        recorded, self.trials = self.trials, []
        for trial in recorded:
            self.add(trial)
        self.known = len(self._tried)
        standing = self.standing()
        self.incumbent = standing[0].config if standing else None

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        key = trial.config.key
        self.pending.pop(key, None)
        if trial.ok or key not in self._latest or _is_telling(trial):
            self._latest[key] = trial
            self._rank(trial)
        self._times[key] += trial.ok
        if key in self._tried:
            self.repeats += 1
            return
        self._tried[key] = trial
        self.repeats = 0
        significant = self._curve[self._improved - 1] * (1 - SIGNIFICANT) if self._improved else math.inf
        best = min(trial.seconds, self._curve[-1]) if self._curve else trial.seconds
        self._curve.append(best)
        if best < significant:
            self._improved = len(self._curve)

    def replace(self, old: Trial, new: Trial) -> None:
        """Replace a trial of this session by the same trial with its throttled flag."""
        self.trials[self.trials.index(old)] = new
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

    def add_from_others(self, trials: Sequence[Trial]) -> None:
        """Add trials that another session has measured since, and show them to the searcher."""
        before = self.tried
        for trial in trials:
            self.add(trial)
        self.known += self.tried - before
        if self.searcher is not None:
            self.searcher.observe(trials)

    @property
    def tried(self) -> int:
        """Return the number of different configs that were tried, in all sessions."""
        return len(self._tried)

    @property
    def begun(self) -> int:
        """Return the number of different configs that were tried or are being measured."""
        return len(self._tried) + len(self.pending)

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

    def stalled(self, preset: Preset) -> bool:
        return self.tried - self._improved >= preset.patience

    def is_open(self, preset: Preset) -> bool:
        """Return whether there is anything left to search."""
        capped = preset.trials is not None and self.begun >= preset.trials
        return self.space is not None and not (self.exhausted or self.skipped or capped or self.stalled(preset))

    @property
    def below_floor(self) -> bool:
        return self.begun < FLOOR

    def failures(self) -> Mapping[str, int]:
        """Return the number of failed trials by kind, in all sessions."""
        return Counter(str(t.failure.kind) for t in self.trials if t.failure is not None)

    def first_error(self) -> str | None:
        return next((f"{t.failure.kind}: {t.failure.message}" for t in self.trials if t.failure is not None), None)


def _rank(trial: Trial) -> tuple[bool, float]:
    return trial.throttled, trial.seconds


def _is_telling(trial: Trial) -> bool:
    return trial.failure is not None and trial.failure.kind.tells_of_config
