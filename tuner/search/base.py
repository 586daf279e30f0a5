"""The contract of a searcher, and what most of them share. Start at `Searcher`; `registry` knows them by name.

A new searcher is one file with a class `(space, seed, history)`, or `(space, seed, history, options)` where it has
options, and one line in `tuner/search/__init__.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from templates.space import SearchSpace
from tuner.errors import SearchFailed
from tuner.search.allocation import shares
from tuner.search.untried import UntriedConfigs
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class Experience:
    """What was measured of another workload, or of this one on another device: `space` is the one that it was
    searched in, `distance` how far it is from the workload at hand (0: only the device differs)."""

    space: SearchSpace
    trials: Sequence[Trial]
    distance: float = 0.0


class Searcher(Protocol):
    """Decides what to measure next. Same seed and same observations: same proposals.

    `failures`: by part, what a library that it uses said when it failed; the searcher goes on without that part.
    """

    failures: dict[str, str]

    def propose(self, n: int) -> list[Config]:
        """Up to `n` valid configs, none of them proposed, observed or in the history before; fewer than `n` only
        where the space has no more, so that an empty list means: exhausted. Raises SearchFailed if a library that it
        uses fails: another searcher can go on."""

    def observe(self, trials: Sequence[Trial]) -> None:
        """Learn from trials, failures included; they need not be ones that this searcher proposed."""

    def suggest(self, configs: Sequence[Config]) -> None:
        """Configs that did well on a similar workload, best first. A searcher may try them soon, or ignore them;
        those that are not valid here are ignored."""

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """What is known of other workloads, the nearest first. A searcher may ignore it. A later call
        replaces what an earlier one said."""


def rng_of(seed: int, history: Sequence[Trial]) -> random.Random:
    """The generator of a searcher. It depends on the length of the history too: a search that goes on would otherwise
    draw what it drew in its first session, all of it known by now."""
    return random.Random(f"{seed}/{len(history)}")


@contextmanager
def library_calls(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Raises SearchFailed, in one line, instead of these errors of a library."""
    try:
        yield
    except errors as error:
        text = str(error).strip() or type(error).__name__
        raise SearchFailed(f"{name}: {text.splitlines()[0]}") from error


class UnadvisedSearcher:
    """What searchers share that nobody influences."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def suggest(self, configs: Sequence[Config]) -> None:
        """Ignored."""

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """Ignored."""


class Basis:
    """What searchers share: the configs that were met, the trials that count, and what a search opens with: the very
    first seed, which says what no tuning would give, then suggestions, then the first seeds of every template.

    A subclass proposes by `_opening` and goes on by itself.
    """

    seeds_per_template = 6

    def __init__(self, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> None:
        self._space = space
        self._rng = rng_of(seed, history)
        self._unseen = UntriedConfigs(space, self._rng)
        self._trials: list[Trial] = []
        self._suggested: list[Config] = []
        self._start = self._first_seeds()
        self.failures: dict[str, str] = {}
        self.observe(history)

    def observe(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._unseen.add(trial.config)
        # A config of another version of the space (a template changed its knobs) says nothing about this one.
        valid = [t for t in trials if self._space.is_valid(t.config)]
        self._trials += valid
        self._take_in(valid)

    def _take_in(self, trials: Sequence[Trial]) -> None:
        """What a subclass does with trials of valid configs, which are among `_trials` by now."""

    def suggest(self, configs: Sequence[Config]) -> None:
        self._suggested += [c for c in configs if self._space.is_valid(c)]

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """Ignored, unless a subclass can use it."""

    def _first_seeds(self) -> list[Config]:
        """The first seeds of every template, taken in turn."""
        start: list[Config] = []
        count: dict[str, int] = {}
        for config in self._space.seed_configs():
            count[config.template] = count.get(config.template, 0) + 1
            if count[config.template] <= self.seeds_per_template:
                start.append(config)
        return start

    def _weights(self) -> Mapping[str, float]:
        """What each template has shown (see `allocation`)."""
        return shares([s.template for s in self._space.spaces], self._trials)

    def _opening(self, n: int, weights: Mapping[str, float]) -> list[Config]:
        """Up to `n` of what a search opens with; seeds of a template that has shown itself slow are mostly dropped."""
        batch: list[Config] = []
        if not self._trials:
            self._take_start(batch, min(n, 1), weights)
        while self._suggested and len(batch) < n:
            self._add(batch, self._suggested.pop(0))
        self._take_start(batch, n, weights)
        return batch

    def _take_start(self, batch: list[Config], n: int, weights: Mapping[str, float]) -> None:
        while self._start and len(batch) < n:
            config = self._start.pop(0)
            if self._rng.random() < weights[config.template]:
                self._add(batch, config)

    def _add(self, batch: list[Config], config: Config) -> None:
        if self._unseen.add(config):
            batch.append(config)

    def _random_unseen(self, weights: Mapping[str, float]) -> Config | None:
        """A random config that was not met, templates by weight; None where the whole space was met."""
        while templates := self._unseen.open_templates:
            template = self._rng.choices(templates, [weights[t] for t in templates])[0]
            config = self._unseen.take(template)
            if config is not None:
                return config
        return None

    def _fill(self, batch: list[Config], n: int, weights: Mapping[str, float]) -> list[Config]:
        """The batch with random unseen configs up to `n`."""
        while len(batch) < n and (fresh := self._random_unseen(weights)) is not None:
            batch.append(fresh)
        return batch
