"""Search with a genetic algorithm, after Liu et al., "Woodpecker-DL: Accelerating Deep Neural Networks via
Hardware-Aware Multifaceted Optimizations", section 2.3.

A config is a chromosome, the vector of its knobs' values. Fitness is a function of the run time. The `elites` fittest
configs pass to the next generation as they are. Roulette-wheel selection chooses the parents of the others, which are
crossed and mutated. It samples the cumulative selection probability (equations 1 and 2) by its inverse. A child is
checked against the space's constraints before it is compiled, and no config is ever proposed twice. Generations may
differ in size. When the run times of a generation are close enough, the search has converged. It then ends, or (by
default, so that a budget is used) begins anew from the best and random configs.

Two things go beyond the paper. The first generation holds the templates' seeds, or the best of the database's history.
Parents of different templates, whose vectors do not match, yield a mutant of the first parent.
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
    """Options of the genetic search, which are sizes, probabilities and criteria.

    `population` is the number of individuals of the first generation. Each next generation has `growth` times as many,
    but at least `smallest`. `elites` is the number of configs that pass to the next generation. `mutation` is the
    probability per knob. Fitness is throughput to the power `sharpness` (1 gives the paper's inverse run time). A
    generation whose times lie within the share `tolerance` has converged. `stop` says that the search ends there.
    """

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
    """A searcher that works as this module's docstring says. `generation` is counted from 0. `converged` says that the
    last generation's run times were alike."""

    # At most this many children are tried until one is valid and new; then a random config takes its place.
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
        # The number of configs of this generation that are still to be proposed.
        self._left = 0 if self._population else self._options.population

    def _take_in(self, trials: Sequence[Trial]) -> None:
        self._population += trials

    def propose(self, n: int) -> list[Config]:
        weights = self._weights()
        batch = self._opening(n, weights)
        self._left = max(0, self._left - len(batch))
        if self.generation == 0 and len(_fittest(self._population)) >= self._options.population:
            self._left = 0  # a whole first generation is measured already
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
        # A search that begins anew keeps the best alone, since the others are like it.
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
        """Return the first parent whose cumulative probability reaches a uniform random number (inverse sampling)."""
        return self._parents[min(bisect_left(self._wheel, self._rng.random()), len(self._parents) - 1)]

    def _child(self, weights: Mapping[str, float]) -> Config | None:
        """Return a valid config that was never met. It is random in the first generation, or where none can be bred.
        Return None where the whole space was met."""
        for _ in range(self.ATTEMPTS if self._parents else 0):
            child = self._breed(self._select().config, self._select().config)
            if child is not None and self._untried.add(child):
                return child
        return self._random_untried(weights)

    def _breed(self, mother: Config, father: Config) -> Config | None:
        space = self._space.space_of(mother)
        assert space is not None  # the population's configs are valid
        if mother.template != father.template or mother == father:
            return space.mutate(mother, self._rng)
        return space.crossover(mother, father, self._rng, self._options.mutation)


def _fittest(trials: Sequence[Trial]) -> list[Trial]:
    """Return the latest trial of each config that ran, fastest first."""
    latest = {t.config.key: t for t in trials if t.ok}
    return sorted(latest.values(), key=lambda t: t.seconds)
