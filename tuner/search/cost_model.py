"""The learned cost model: gradient-boosted trees over the features of `SearchSpace.encode`.

Only the order of its scores means anything: higher is faster. Features that a template does not have are missing
values, which the trees handle themselves, so one model covers all templates of a workload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import xgboost

from templates.space import SearchSpace
from tuning_db.record import Config, Trial

# One thread: the other cores measure. On recorded convolutions (64 to 256 trials, ranking the rest) shallow trees rank
# as well as deep ones and fit in half the time; the objectives rank:pairwise and regression are equal in the trials
# that matter, the first few, and regression has a scale, which choosing a diverse batch needs.
_PARAMETERS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.3,
    "min_child_weight": 1,
    "nthread": 1,
    "verbosity": 0,
}
_ROUNDS = 40


def throughput(trials: Sequence[Trial]) -> np.ndarray:
    """The fastest trial's seconds over each trial's: 1 for the best, 0 for a failure (the worst there is)."""
    seconds = np.array([t.seconds for t in trials])
    best = seconds.min()
    return np.zeros(len(trials)) if math.isinf(best) else best / seconds


class CostModel:
    """Scores configs by what was measured. Deterministic: the same trials in the same order give the same scores."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._columns: dict[str, int] = {}
        self._booster: xgboost.Booster | None = None

    @property
    def fitted(self) -> bool:
        return self._booster is not None

    def fit(self, trials: Sequence[Trial]) -> None:
        """Trials of valid configs, at least one of which has a time."""
        names, rows = self._space.encode([t.config for t in trials])
        self._columns = {name: i for i, name in enumerate(names)}
        data = xgboost.DMatrix(np.array(rows, dtype=np.float32), label=throughput(trials), missing=math.nan, nthread=1)
        self._booster = xgboost.train(_PARAMETERS, data, _ROUNDS)

    def scores(self, configs: Sequence[Config]) -> np.ndarray:
        """One score per config, higher is faster. `fit` must have been called."""
        if self._booster is None:
            raise RuntimeError("the cost model was not fitted")
        if not configs:
            return np.zeros(0)
        names, rows = self._space.encode(configs)
        matrix = np.full((len(configs), len(self._columns)), math.nan, dtype=np.float32)
        # Features of templates that no trial has yet are unknown to the trees.
        known = [i for i, name in enumerate(names) if name in self._columns]
        matrix[:, [self._columns[names[i]] for i in known]] = np.array(rows, dtype=np.float32)[:, known]
        scores: np.ndarray = self._booster.inplace_predict(matrix)
        return scores
