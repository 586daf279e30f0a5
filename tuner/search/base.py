"""Define the contract of a searcher, and what most searchers share. Start at `Searcher`; `registry` knows searchers by
name.

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
    """Trials that were measured on another workload, or on this one with another device. `space` is the one that they
    were searched in. `distance` says how far they are from the workload at hand (see tuner.session.experience)."""

    space: SearchSpace
    trials: Sequence[Trial]
    distance: float = 0.0


class Searcher(Protocol):
    """A searcher decides what to measure next. The same seed and the same observations give the same proposals.

    `failures` maps a part of the searcher to what a library said when it failed there; the searcher goes on without
    that part.
    """

    failures: dict[str, str]

    def propose(self, n: int) -> list[Config]:
        """Return up to `n` valid configs, none of them proposed, observed or in the history before. Fewer than `n` are
        returned only where the space has no more, so an empty list means that it is exhausted. Raises SearchFailed if a
        library that the searcher uses fails; another searcher can go on."""

    def observe(self, trials: Sequence[Trial]) -> None:
        """Learn from trials, failures included; they need not be ones that this searcher proposed."""

    def suggest(self, configs: Sequence[Config]) -> None:
        """Suggest configs that did well on a similar workload, best first. A searcher may try them soon, or ignore
        them. Configs that are not valid here are ignored."""

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """Tell the searcher what is known of other workloads, the nearest first. A searcher may ignore it. A later call
        replaces what an earlier one said."""


def rng_of(seed: int, history: Sequence[Trial]) -> random.Random:
    """Return the random generator of a searcher. It depends on the length of the history too. Otherwise a search that
    goes on would draw what it drew in its first session, all of which is known by now."""
    return random.Random(f"{seed}/{len(history)}")


@contextmanager
def library_calls(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise SearchFailed, with one line, in place of these errors of a library."""
    try:
        yield
    except errors as error:
        text = str(error).strip() or type(error).__name__
        raise SearchFailed(f"{name}: {text.splitlines()[0]}") from error


class UnadvisedSearcher:
    """Base class for searchers that ignore suggestions and transferred trials."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def suggest(self, configs: Sequence[Config]) -> None:
        """Ignore the suggestions."""

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """Ignore the trials of other workloads."""


class Basis:
    """Base class that most searchers share. It keeps the configs that were met, the trials that count, and the opening
    of a search. The opening is the very first seed, which shows the time without tuning, then suggestions, then the
    first seeds of every template.

    A subclass proposes what `_opening` returns first, and goes on by itself.
    """

    seeds_per_template = 6

    def __init__(self, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> None:
        self._space = space
        self._rng = rng_of(seed, history)
        self._untried = UntriedConfigs(space, self._rng)
        self._trials: list[Trial] = []
        self._suggested: list[Config] = []
        self._start = self._first_seeds()
        self.failures: dict[str, str] = {}
        self.observe(history)

    def observe(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._untried.add(trial.config)
        # A config of another version of the space (a template changed its knobs) says nothing about this one.
        valid = [t for t in trials if self._space.is_valid(t.config)]
        self._trials += valid
        self._take_in(valid)

    def _take_in(self, trials: Sequence[Trial]) -> None:
        """Let a subclass use trials of valid configs, which are among `_trials` by now."""

    def suggest(self, configs: Sequence[Config]) -> None:
        self._suggested += [c for c in configs if self._space.is_valid(c)]

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """Ignore the trials of other workloads, unless a subclass can use them."""

    def _first_seeds(self) -> list[Config]:
        """Return the first seeds of every template, taken from the templates in turn."""
        start: list[Config] = []
        count: dict[str, int] = {}
        for config in self._space.seed_configs():
            count[config.template] = count.get(config.template, 0) + 1
            if count[config.template] <= self.seeds_per_template:
                start.append(config)
        return start

    def _weights(self) -> Mapping[str, float]:
        """Return the weight of each template, by what it has shown (see `allocation`)."""
        return shares([s.template for s in self._space.spaces], self._trials)

    def _opening(self, n: int, weights: Mapping[str, float]) -> list[Config]:
        """Return up to `n` configs of a search's opening. Seeds of a template that has shown itself slow are mostly
        dropped."""
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
        if self._untried.add(config):
            batch.append(config)

    def _random_untried(self, weights: Mapping[str, float]) -> Config | None:
        """Return a random config that was not met, with the template chosen by weight. Return None where the whole
        space was met."""
        while templates := self._untried.open_templates:
            template = self._rng.choices(templates, [weights[t] for t in templates])[0]
            config = self._untried.take(template)
            if config is not None:
                return config
        return None

    def _fill(self, batch: list[Config], n: int, weights: Mapping[str, float]) -> list[Config]:
        """Fill the batch with random untried configs up to `n`, and return it."""
        while len(batch) < n and (fresh := self._random_untried(weights)) is not None:
            batch.append(fresh)
        return batch
