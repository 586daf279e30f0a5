"""Model-guided search, the default: measure the seeds and a spread-out set, then what a learned cost model ranks best.

Each batch evolves a population from the best measured configs, random ones and unused seeds (mutation, crossover,
steps to neighbours), scored by the model alone, and takes the best unseen ones that also differ from each other; a
small share is random. Templates get trials by what they have shown (`allocation`), so a slow one fades early. The
scheme follows Chen et al., "Learning to Optimize Tensor Programs" (NeurIPS 2018), section 4, with evolution in place
of annealing, as in Zheng et al., "Ansor" (OSDI 2020), section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from templates.space import SearchSpace
from tuner.search.allocation import shares
from tuner.search.base import Unseen, rng_of
from tuner.search.cost_model import CostModel
from tuner.search.diversity import diverse_batch, spread_out
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class Options:
    """Counts are configs. Results depend little on them: halving or doubling one moves a search less than its seed."""

    seeds_per_template: int = 6  # measured first; the rest competes under the model
    spread_per_template: int = 4
    spread_pool: int = 48
    fit_from: int = 12  # trials, before which a model knows too little
    refit_after: int = 4  # new trials
    elite: int = 16
    population: int = 64
    generations: int = 4
    children: int = 96
    batch_pool: int = 96
    novelty: float = 0.05
    epsilon: float = 0.08


class ModelGuidedSearcher:
    def __init__(
        self, space: SearchSpace, seed: int, history: Sequence[Trial] = (), options: Options | None = None
    ) -> None:
        self._space = space
        self._options = options or Options()
        self._rng = rng_of(seed, history)
        self._unseen = Unseen(space, self._rng)
        self._trials: list[Trial] = []
        self._model = CostModel(space)
        self._fitted_trials = 0
        self._seeds = space.seed_configs()
        self._suggested: list[Config] = []
        self._start = self._starting_seeds()
        if len(history) < self._options.fit_from:
            self._start += self._spread(self._start)
        self.observe(history)

    def observe(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._unseen.add(trial.config)
            # A config of another version of the space (a template changed its knobs) says nothing about this one.
            if self._space.is_valid(trial.config):
                self._trials.append(trial)

    def suggest(self, configs: Sequence[Config]) -> None:
        """They come first in the next proposal, behind the very first seed, which says what no tuning would give."""
        self._suggested += [c for c in configs if self._space.is_valid(c)]

    def propose(self, n: int) -> list[Config]:
        weights = shares([s.template for s in self._space.spaces], self._trials)
        batch: list[Config] = []
        if not self._trials:
            self._take_start(batch, min(n, 1), weights)
        while self._suggested and len(batch) < n:
            self._add(batch, self._suggested.pop(0))
        self._take_start(batch, n, weights)
        if len(batch) < n and self._ready():
            explore = sum(self._rng.random() < self._options.epsilon for _ in range(n - len(batch)))
            for config in self._ranked(n - len(batch) - explore, weights):
                self._add(batch, config)
        while len(batch) < n and (fresh := self._random_unseen(weights)) is not None:
            batch.append(fresh)
        return batch

    def _add(self, batch: list[Config], config: Config) -> None:
        if self._unseen.add(config):
            batch.append(config)

    def _starting_seeds(self) -> list[Config]:
        """The first seeds of every template, taken in turn."""
        start: list[Config] = []
        count: dict[str, int] = {}
        for config in self._seeds:
            count[config.template] = count.get(config.template, 0) + 1
            if count[config.template] <= self._options.seeds_per_template:
                start.append(config)
        return start

    def _spread(self, seeds: Sequence[Config]) -> list[Config]:
        """Random configs of every template, far from the seeds and from each other."""
        found: list[Config] = []
        for space in self._space.spaces:
            pool = [c for c in (space.sample(self._rng) for _ in range(self._options.spread_pool)) if c is not None]
            taken = [c for c in seeds if c.template == space.template]
            found += spread_out(space, pool, taken, self._options.spread_per_template)
        return found

    def _take_start(self, batch: list[Config], n: int, weights: Mapping[str, float]) -> None:
        """Move starting configs into the batch; those of a template that has shown itself slow are mostly dropped."""
        while self._start and len(batch) < n:
            config = self._start.pop(0)
            if self._rng.random() < weights[config.template]:
                self._add(batch, config)

    def _random_unseen(self, weights: Mapping[str, float]) -> Config | None:
        """A random config that was not met, templates by weight; None where the whole space was met."""
        while templates := self._unseen.open_templates:
            template = self._rng.choices(templates, [weights[t] for t in templates])[0]
            config = self._unseen.take(template)
            if config is not None:
                return config
        return None

    def _ready(self) -> bool:
        """Fit the model if enough is new. False while there is too little to learn from."""
        if len(self._trials) < self._options.fit_from or not any(t.ok for t in self._trials):
            return False
        if not self._model.fitted or len(self._trials) - self._fitted_trials >= self._options.refit_after:
            self._model.fit(self._trials)
            self._fitted_trials = len(self._trials)
        return True

    def _ranked(self, n: int, weights: Mapping[str, float]) -> list[Config]:
        """The `n` unseen configs of an evolution over the model that it ranks best and that differ."""
        scored = self._evolve(weights)
        pool = sorted((c for c in scored if c not in self._unseen), key=lambda c: -scored[c])
        pool = pool[: self._options.batch_pool]
        return diverse_batch(pool, [scored[c] for c in pool], n, self._options.novelty)

    def _evolve(self, weights: Mapping[str, float]) -> dict[Config, float]:
        """Every config met on the way with its score."""
        elite = self._elite(weights)
        scored: dict[Config, float] = {}
        self._score([*elite, *self._fresh(weights), *self._seeds, *self._steps_from(elite[:2])], scored)
        for _ in range(self._options.generations):
            parents = sorted(scored, key=lambda c: -scored[c])[: self._options.population]
            self._score([c for c in self._children(parents) if c is not None], scored)
        return scored

    def _score(self, configs: Sequence[Config], scored: dict[Config, float]) -> None:
        new = [c for c in dict.fromkeys(configs) if c not in scored]
        scored.update(zip(new, map(float, self._model.scores(new)), strict=True))

    def _elite(self, weights: Mapping[str, float]) -> list[Config]:
        """The best measured configs; a slow template's are few, since its trials rank low."""
        good = sorted((t for t in self._trials if t.ok), key=lambda t: t.seconds / weights[t.config.template] ** 0.5)
        return [t.config for t in good[: self._options.elite]]

    def _fresh(self, weights: Mapping[str, float]) -> list[Config]:
        templates = [s.template for s in self._space.spaces]
        chosen = self._rng.choices(self._space.spaces, [weights[t] for t in templates], k=self._options.population)
        return [c for c in (space.sample(self._rng) for space in chosen) if c is not None]

    def _steps_from(self, configs: Sequence[Config]) -> list[Config]:
        """All configs one step from the given ones: the last percents are found there."""
        return [n for c in configs if (space := self._space.space_of(c)) for n in space.neighbours(c)]

    def _children(self, parents: Sequence[Config]) -> list[Config | None]:
        """Mutants of parents and crosses of two of one template; better parents (earlier ones) more often."""
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
