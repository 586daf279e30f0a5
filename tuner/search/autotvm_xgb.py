"""Re-create AutoTVM's model-based tuner, as a baseline to compare with; `model_guided` is ours. The tuner is XGBTuner
of Apache TVM up to 0.19; see Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018.

After 64 random trials, and again after every 64, boosted trees learn to rank all trials. Simulated annealing of 128
points over their scores then gives the next 64 configs. They are the best that are new, and one in twenty is drawn at
random. Points go on from where the last annealing left them. The searcher uses no seeds, no suggestions and no other
workloads; trials of a history are learnt from like others. Three things differ from XGBTuner: a point only steps to
valid configs, features are ours, and the number of trees is fixed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from templates.space import SearchSpace
from tuner.search.base import Basis
from tuner.search.cost_model import PARAMETERS, CostModel
from tuning_db.record import Config, Trial

_RANKING = {**PARAMETERS, "objective": "rank:pairwise", "max_depth": 3, "gamma": 0.0001}


@dataclass(frozen=True)
class AutotvmModelOptions:
    """Options that XGBTuner has. `plan` is the number of trials between two trainings, and `random` the share of them
    that is drawn at random. `points`, `steps` and `patience` (steps that improve nothing) belong to the annealing,
    whose temperature falls from 1 to 0."""

    plan: int = 64
    random: float = 0.05
    points: int = 128
    steps: int = 500
    patience: int = 50

    def __post_init__(self) -> None:
        if min(self.plan, self.points, self.steps, self.patience) < 1 or not 0 <= self.random <= 1:
            raise ValueError("plan, points, steps and patience are at least 1, random from 0 to 1")


class AutotvmModelSearcher(Basis):
    """See this module's docstring."""

    seeds_per_template = 0

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        history: Sequence[Trial] = (),
        options: AutotvmModelOptions | None = None,
    ) -> None:
        self._options = options or AutotvmModelOptions()
        self._model = CostModel(space, _RANKING)
        self._points: list[Config] = []
        self._scores: dict[Config, float] = {}  # by the current model
        self._steps: dict[tuple[Any, ...], Config | None] = {}  # by template and values; None: not valid
        self._plan: list[Config] = []
        self._trained = 0
        super().__init__(space, seed, history)

    def suggest(self, configs: Sequence[Config]) -> None:
        """Ignore the suggestions."""

    def propose(self, n: int) -> list[Config]:
        batch: list[Config] = []
        while len(batch) < n:
            self._train()
            config = self._next()
            if config is None:
                break
            batch.append(config)
        return batch

    def _train(self) -> None:
        due = len(self._trials) >= self._options.plan * (self._trained + 1) and any(t.ok for t in self._trials)
        if due:
            self._model.fit(self._trials)
            self._trained = len(self._trials) // self._options.plan
            self._scores, self._steps = {}, {}
            self._plan = self._annealed()

    def _next(self) -> Config | None:
        while self._plan and self._rng.random() >= self._options.random:
            config = self._plan.pop(0)
            if self._untried.add(config):
                return config
        return self._untried.take()

    def _annealed(self) -> list[Config]:
        """Return the new configs with the best scores that the annealing met, the best first."""
        missing = self._options.points - len(self._points)
        self._points += [c for c in (self._space.sample(self._rng) for _ in range(missing)) if c is not None]
        self._score(self._points)
        best: dict[Config, float] = {}
        idle = 0
        for step in range(self._options.steps):
            temperature = 1 - step / self._options.steps
            moved = [self._step(c) for c in self._points]
            self._score(moved)
            before = set(best)
            best.update((c, self._scores[c]) for c in moved if c not in self._untried)
            best = {c: best[c] for c in heapq.nlargest(self._options.plan, best, key=lambda c: best[c])}
            idle = idle + 1 if before == set(best) else 0
            if idle >= self._options.patience:
                break
            self._points = [self._chosen(a, b, temperature) for a, b in zip(self._points, moved, strict=True)]
        return list(best)

    def _score(self, configs: Sequence[Config]) -> None:
        new = [c for c in dict.fromkeys(configs) if c not in self._scores]
        self._scores.update(zip(new, map(float, self._model.scores(new)), strict=True))

    def _step(self, config: Config) -> Config:
        """Return the config with one knob set to a random value, or the same config where that is not valid."""
        space = self._space.space_of(config)
        assert space is not None  # points are valid configs
        free = [k for k in space.knobs if len(k.values) > 1]
        if not free:
            return config
        knob = self._rng.choice(free)
        values = {**config.knobs, knob.name: self._rng.choice(knob.values)}
        key = (config.template, *values.values())
        if key not in self._steps:
            changed = Config(config.template, values)
            self._steps[key] = changed if space.is_valid(changed) else None
        return self._steps[key] or config

    def _chosen(self, here: Config, there: Config, temperature: float) -> Config:
        gain = self._scores[there] - self._scores[here]
        return there if gain >= 0 or self._rng.random() < math.exp(gain / (temperature + 1e-5)) else here
