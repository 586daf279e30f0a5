"""Re-create AutoTVM's genetic tuner (GATuner, Apache TVM up to 0.19), as a baseline to compare with. `genetic` is ours.

A random population of a hundred is measured. Then the elites and roulette-wheel selection by throughput give parents,
which are crossed at one point. Every knob of a child mutates with a small probability. A child that was met before is
changed knob by knob until it is new. The searcher uses no seeds, no suggestions and no other workloads. Trials of a
history count as measured in the first generation. Two things differ from GATuner: a child is valid before it is
measured, and parents of different templates yield a mutant of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from templates.space import SearchSpace
from tuner.search.base import Basis
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class AutotvmGeneticOptions:
    """Options that GATuner has: `population`, `elites` and `mutation`, the probability per knob."""

    population: int = 100
    elites: int = 3
    mutation: float = 0.1

    def __post_init__(self) -> None:
        if self.population < 1 or self.elites < 0 or not 0 <= self.mutation <= 1:
            raise ValueError("population is at least 1, elites at least 0, mutation from 0 to 1")


class AutotvmGeneticSearcher(Basis):
    """See this module's docstring."""

    seeds_per_template = 0
    # A child is changed at most this often until it is valid and new; then a random config takes its place.
    ATTEMPTS = 64

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        history: Sequence[Trial] = (),
        options: AutotvmGeneticOptions | None = None,
    ) -> None:
        self._options = options or AutotvmGeneticOptions()
        self._measured: list[Trial] = []  # trials of this generation
        self._parents: list[Trial] = []
        self._left = self._options.population
        super().__init__(space, seed, history)

    def suggest(self, configs: Sequence[Config]) -> None:
        """Ignore the suggestions."""

    def _take_in(self, trials: Sequence[Trial]) -> None:
        self._measured += trials

    def propose(self, n: int) -> list[Config]:
        batch: list[Config] = []
        while len(batch) < n:
            if self._left == 0:
                self._next_generation()
            child = self._child() or self._untried.take()
            if child is None:
                break
            batch.append(child)
            self._left -= 1
        return batch

    def _next_generation(self) -> None:
        elites = sorted((t for t in self._parents if t.ok), key=lambda t: t.seconds)[: self._options.elites]
        self._parents = [t for t in [*self._measured, *elites] if t.ok]
        self._measured = []
        self._left = self._options.population

    def _child(self) -> Config | None:
        """Return a new and valid child. Return None where there are no parents, or where no such child was met."""
        if not self._parents:
            return None
        mother, father = self._rng.choices(self._parents, [1 / t.seconds for t in self._parents], k=2)
        space = self._space.space_of(mother.config)
        assert space is not None  # parents are valid configs
        genes = dict(mother.config.knobs)
        point = self._rng.randrange(len(space.knobs))
        for i, knob in enumerate(space.knobs):
            if i >= point and father.config.template == space.template:
                genes[knob.name] = father.config[knob.name]
            if self._rng.random() < self._options.mutation:
                genes[knob.name] = self._rng.choice(knob.values)
        for _ in range(self.ATTEMPTS):
            child = space.config(genes)
            if space.is_valid(child) and self._untried.add(child):
                return child
            knob = self._rng.choice(space.knobs)
            genes[knob.name] = self._rng.choice(knob.values)
        return None
