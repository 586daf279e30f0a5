"""Measure the seeds and a spread-out set first, then what a learned cost model ranks best. Start at
`ModelGuidedSearcher`.

Each batch evolves a population from the best measured configs, random ones and unused seeds (by mutation, crossover and
steps to neighbours). The model alone scores it. The batch gets the best untried configs that also differ from each
other, and a small share of random ones. Templates get trials by what they have shown (`allocation`), so a slow one
fades early. The scheme follows Chen et al., "Learning to Optimize Tensor Programs" (NeurIPS 2018), section 4. Evolution
takes the place of annealing, as in Zheng et al., "Ansor" (OSDI 2020), section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from templates.space import SearchSpace
from tuner.search.base import Basis, Experience
from tuner.search.cost_model import CostModel
from tuner.search.diversity import diverse_batch, spread_out
from tuner.search.transfer import adapted
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class ModelOptions:
    """Options whose counts are numbers of configs. Results depend little on them: halving or doubling one moves a
    search less than its seed does."""

    seeds_per_template: int = 6  # measured first; the model ranks the others
    seeds_after_experience: int = 4  # in all, of templates that the model knows from other workloads
    adapted: int = 4  # best configs of other workloads, measured first too
    spread_per_template: int = 4
    spread_pool: int = 48
    fit_from: int = 12  # trials; with fewer, a model knows too little
    refit_after: int = 4  # new trials
    refit_share: float = 1 / 16  # or this share of the trials, if that is more, since a few then change little
    elite: int = 16
    population: int = 64
    generations: int = 4
    children: int = 96
    batch_pool: int = 96
    novelty: float = 0.05
    epsilon: float = 0.08

    def __post_init__(self) -> None:
        counts = (self.fit_from, self.refit_after, self.elite, self.population, self.children, self.batch_pool)
        if min(counts) < 1 or min(self.seeds_per_template, self.generations, self.adapted) < 0:
            raise ValueError("counts are at least 1, those of seeds and generations at least 0")
        if not (0 <= self.epsilon <= 1 and self.novelty >= 0 and self.refit_share >= 0):
            raise ValueError("epsilon is between 0 and 1, novelty and refit_share are not negative")


class ModelGuidedSearcher(Basis):
    """See this module's docstring."""

    def __init__(
        self, space: SearchSpace, seed: int, history: Sequence[Trial] = (), options: ModelOptions | None = None
    ) -> None:
        self._options = options or ModelOptions()
        self.seeds_per_template = self._options.seeds_per_template
        self._model = CostModel(space)
        self._fitted_trials = 0
        self._seeds = space.seed_configs()
        self._experience: list[Experience] = []
        super().__init__(space, seed, history)
        if len(history) < self._options.fit_from:
            self._start += self._spread(self._start)

    def learn_from(self, experience: Sequence[Experience]) -> None:
        """Start the model with the trials of other workloads. The best configs of the nearest workloads are among the
        first tried."""
        self._experience = [e for e in experience if any(t.ok for t in e.trials)]
        if self._experience and not self._trials and not self._suggested:
            taught = {t.config.template for e in self._experience for t in e.trials if t.ok}
            few = self._options.seeds_after_experience
            self._start = [c for i, c in enumerate(self._start) if i < few or c.template not in taught]
            self.suggest(adapted(self._space, self._experience, self._options.adapted))

    def propose(self, n: int) -> list[Config]:
        weights = self._weights()
        batch = self._opening(n, weights)
        if len(batch) < n and self._ready():
            explore = sum(self._rng.random() < self._options.epsilon for _ in range(n - len(batch)))
            for config in self._ranked(n - len(batch) - explore, weights):
                self._add(batch, config)
        return self._fill(batch, n, weights)

    def _spread(self, seeds: Sequence[Config]) -> list[Config]:
        """Draw random configs of every template, and return those far from the seeds and from each other."""
        found: list[Config] = []
        for space in self._space.spaces:
            pool = [c for c in (space.sample(self._rng) for _ in range(self._options.spread_pool)) if c is not None]
            taken = [c for c in seeds if c.template == space.template]
            found += spread_out(space, pool, taken, self._options.spread_per_template)
        return found

    def _ready(self) -> bool:
        """Fit the model if there are enough new trials. Return False while there is too little to learn from."""
        enough = len(self._trials) >= self._options.fit_from and any(t.ok for t in self._trials)
        if not enough and not self._experience:
            return False
        wait = max(self._options.refit_after, self._options.refit_share * self._fitted_trials)
        if not self._model.fitted or len(self._trials) - self._fitted_trials >= wait:
            self._model.fit(self._trials, self._experience)
            self._fitted_trials = len(self._trials)
        return True

    def _ranked(self, n: int, weights: Mapping[str, float]) -> list[Config]:
        """Return the `n` untried configs of an evolution that the model ranks best and that differ from each other."""
        scored = self._evolve(weights)
        pool = sorted((c for c in scored if c not in self._untried), key=lambda c: -scored[c])
        pool = pool[: self._options.batch_pool]
        return diverse_batch(pool, [scored[c] for c in pool], n, self._options.novelty)

    def _evolve(self, weights: Mapping[str, float]) -> dict[Config, float]:
        """Return every config that the evolution met, with its score."""
        elite = self._elite(weights)
        scored: dict[Config, float] = {}
        self._score([*elite, *self._fresh(weights), *self._seeds, *self._steps_from(elite[:2])], scored)
        for _ in range(self._options.generations):
            parents = sorted(scored, key=lambda c: -scored[c])[: self._options.population]
            if not parents:
                break  # no valid config was met
            self._score([c for c in self._children(parents) if c is not None], scored)
        return scored

    def _score(self, configs: Sequence[Config], scored: dict[Config, float]) -> None:
        new = [c for c in dict.fromkeys(configs) if c not in scored]
        scored.update(zip(new, map(float, self._model.scores(new)), strict=True))

    def _elite(self, weights: Mapping[str, float]) -> list[Config]:
        """Return the best measured configs. Few of them are a slow template's, since its trials rank low."""
        good = sorted((t for t in self._trials if t.ok), key=lambda t: t.seconds / weights[t.config.template] ** 0.5)
        return [t.config for t in good[: self._options.elite]]

    def _fresh(self, weights: Mapping[str, float]) -> list[Config]:
        templates = [s.template for s in self._space.spaces]
        chosen = self._rng.choices(self._space.spaces, [weights[t] for t in templates], k=self._options.population)
        return [c for c in (space.sample(self._rng) for space in chosen) if c is not None]

    def _steps_from(self, configs: Sequence[Config]) -> list[Config]:
        """Return all configs one step from the given ones. The last percents are found there."""
        return [n for c in configs if (space := self._space.space_of(c)) for n in space.neighbours(c)]

    def _children(self, parents: Sequence[Config]) -> list[Config | None]:
        """Return mutants of parents, and crosses of two parents of one template. Better parents (earlier ones) are
        chosen more often. None stands for a child that is not valid."""
        found: list[Config | None] = []
        for _ in range(self._options.children):
            parent = parents[int(len(parents) * self._rng.random() ** 2)]
            space = self._space.space_of(parent)
            assert space is not None  # parents are valid configs
            other = parents[int(len(parents) * self._rng.random() ** 2)]
            if self._rng.random() < 0.3 and other.template == parent.template:
                found.append(space.crossover(parent, other, self._rng))
            else:
                found.append(space.mutate(parent, self._rng))
        return found
