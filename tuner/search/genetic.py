"""Genetic search as Woodpecker-DL has it (Chen et al., section 2.3).

A config is a chromosome, the vector of its knobs' values. Fitness is a function of the run time; the `elites` fittest
pass to the next generation as they are, and roulette-wheel selection (equations 1 and 2: the cumulative selection
probability, sampled by its inverse) chooses the parents of the others, which are crossed and mutated. A child is
checked against the space's constraints before it is compiled, and no config is ever proposed twice. Generations may
differ in size. When the run times of a generation are close enough the search has converged: it ends there, or
(the default, so that a budget is used) begins anew from the best and random configs.

Beyond the paper: the first generation holds the templates' seeds, or the best of the database's history, and parents
of different templates, whose vectors do not match, bear a mutant of the first.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from templates.space import SearchSpace
from tuner.search.base import Basis
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class GeneticOptions:
    """`population`: individuals of the first generation; `growth`: the next one's size as a multiple of it; `elites`;
    `mutation`: probability per knob; `sharpness`: fitness is throughput to this power (1: the paper's inverse run
    time); `tolerance`: a generation whose times lie within this share has converged; `stop`: end there."""

    population: int = 32
    growth: float = 0.75
    smallest: int = 16
    elites: int = 6
    mutation: float = 0.1
    sharpness: float = 4.0
    tolerance: float = 0.03
    stop: bool = False

    def __post_init__(self) -> None:
        if self.elites < 1 or min(self.population, self.smallest) <= self.elites:
            raise ValueError("population and smallest must be larger than elites, which is at least 1")
        if not (0 <= self.mutation <= 1 and 0 < self.growth <= 4 and self.sharpness > 0 and self.tolerance >= 0):
            raise ValueError("mutation is from 0 to 1, growth up to 4, sharpness positive, tolerance not negative")

    def size(self, generation: int) -> int:
        return max(self.smallest, round(self.population * self.growth**generation))


class GeneticSearcher(Basis):
    """Attributes: `generation`, counted from 0; `converged`: whether the last generation's run times were alike."""

    # So many children are tried until one is valid and new; then a random config takes its place.
    ATTEMPTS = 24

    def __init__(
        self, space: SearchSpace, seed: int, history: Sequence[Trial] = (), options: GeneticOptions | None = None
    ) -> None:
        self._options = options or GeneticOptions()
        self._population: list[Trial] = []  # the elites of the last generation, and what was measured of this one
        self._parents: list[Trial] = []
        self._wheel: list[float] = []
        self.generation = 0
        self.converged = False
        super().__init__(space, seed, history)
        self._population = _fittest(self._trials)[: self._options.population]
        # Of this generation, to be proposed.
        self._left = 0 if self._population else self._options.population

    def _take_in(self, trials: Sequence[Trial]) -> None:
        self._population += trials

    def propose(self, n: int) -> list[Config]:
        weights = self._weights()
        batch = self._opening(n, weights)
        self._left = max(0, self._left - len(batch))
        if self.generation == 0 and len(_fittest(self._population)) >= self._options.population:
            self._left = 0  # others have measured a first generation
        while len(batch) < n:
            if self._left == 0 and not self._ended:
                self._next_generation()
            if self._ended:
                break
            child = self._child(weights)
            if child is None:
                break
            batch.append(child)
            self._left -= 1
        return batch

    @property
    def _ended(self) -> bool:
        return self.converged and self._options.stop

    def _next_generation(self) -> None:
        fit = _fittest(self._population)
        self.generation += 1
        self.converged = self._has_converged(fit)
        # Begun anew, only the best is kept: the others are its likes.
        self._population = fit[: 1 if self.converged else self._options.elites]
        self._parents = [] if self.converged else fit
        best = fit[0].seconds if fit else 0.0
        fitness = [(best / t.seconds) ** self._options.sharpness for t in self._parents]
        self._wheel = [total / sum(fitness) for total in itertools.accumulate(fitness)]
        size = self._options.population if self.converged else self._options.size(self.generation)
        self._left = max(1, size - len(self._population))

    def _has_converged(self, fit: Sequence[Trial]) -> bool:
        enough = len(fit) > self._options.elites
        return enough and fit[-1].seconds <= fit[0].seconds * (1 + self._options.tolerance)

    def _select(self) -> Trial:
        """Inverse sampling: the first whose cumulative probability reaches a uniform number."""
        return self._parents[min(bisect_left(self._wheel, self._rng.random()), len(self._parents) - 1)]

    def _child(self, weights: Mapping[str, float]) -> Config | None:
        """A valid config that was never met; a random one in the first generation, or where none can be bred."""
        for _ in range(self.ATTEMPTS if self._parents else 0):
            child = self._breed(self._select().config, self._select().config)
            if child is not None and self._unseen.add(child):
                return child
        return self._random_unseen(weights)

    def _breed(self, mother: Config, father: Config) -> Config | None:
        space = self._space.space_of(mother)
        assert space is not None  # the population's configs are valid
        if mother.template != father.template or mother == father:
            return space.mutate(mother, self._rng)
        return space.crossover(mother, father, self._rng, self._options.mutation)


def _fittest(trials: Sequence[Trial]) -> list[Trial]:
    """Those that ran, one of each config, the fastest first."""
    latest = {t.config.key: t for t in trials if t.ok}
    return sorted(latest.values(), key=lambda t: t.seconds)
