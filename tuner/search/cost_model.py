"""Learn a cost model: gradient-boosted trees over the features of `SearchSpace.encode`. Start at `CostModel`.

Only the order of its scores means anything: higher is faster. Features that a template does not have are missing
values, which the trees handle themselves. So one model covers all templates of a workload, and all workloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from templates.space import SearchSpace
from tuner.search.base import Experience, library_calls
from tuning_db.record import Config, Trial

if TYPE_CHECKING:
    from xgboost import Booster

# XGBoost has one thread, because the other cores measure. On recorded convolutions (64 to 256 trials, ranking the rest)
# shallow trees rank as well as deep ones and fit in half the time. The objectives rank:pairwise and regression are
# equal in the first few trials, which matter. Regression also has a scale, which choosing a diverse batch needs.
PARAMETERS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.3,
    "min_child_weight": 1,
    "nthread": 1,
    "verbosity": 0,
}
ROUNDS = 40
# A trial of another workload has this weight, because it only says what is good there. More than _MOST_FOREIGN of them
# change nothing.
_FOREIGN = 0.3
_MOST_FOREIGN = 600


def throughput(trials: Sequence[Trial]) -> np.ndarray:
    """Return the fastest trial's seconds over each trial's. The best trial has 1, and a failure has 0 (the worst there
    is)."""
    seconds = np.array([t.seconds for t in trials])
    best = seconds.min()
    return np.zeros(len(trials)) if math.isinf(best) else best / seconds


class CostModel:
    """A model that scores configs by what was measured. It is deterministic: the same trials in the same order give the
    same scores.

    `parameters` are those of XGBoost. A ranking objective ranks the trials of one workload among each other.
    """

    def __init__(self, space: SearchSpace, parameters: Mapping[str, Any] = PARAMETERS) -> None:
        self._space = space
        self._parameters = dict(parameters)
        self._columns: dict[str, int] = {}
        self._booster: Booster | None = None

    @property
    def fitted(self) -> bool:
        return self._booster is not None

    def fit(self, trials: Sequence[Trial], experience: Sequence[Experience] = ()) -> None:
        """Fit the model to trials of valid configs of this space and of others, at least one of which has a time.
        Throughput is relative to the best of the same workload. Raises SearchFailed if the library fails."""
        parts = [(self._space, trials, 1.0)] if trials else []
        left = _MOST_FOREIGN
        for other in experience:
            parts.append((other.space, other.trials[:left], _FOREIGN / (1 + other.distance)))
            left -= len(parts[-1][1])
        parts = [part for part in parts if part[1]]
        tables = [space.encode([t.config for t in measured]) for space, measured, _ in parts]
        self._columns = {name: i for i, name in enumerate(sorted({n for names, _ in tables for n in names}))}
        matrix = np.concatenate([self._matrix(names, rows) for names, rows in tables])
        label = np.concatenate([throughput(measured) for _, measured, _ in parts])
        sizes, weights = [len(measured) for _, measured, _ in parts], [w for _, _, w in parts]
        ranks = str(self._parameters["objective"]).startswith("rank:")
        grouped = {"group": sizes, "weight": weights} if ranks else {"weight": np.repeat(weights, sizes)}
        with _xgboost() as xgboost:
            data = xgboost.DMatrix(matrix, label=label, missing=math.nan, nthread=1, **grouped)
            self._booster = xgboost.train(self._parameters, data, ROUNDS)

    def _matrix(self, names: Sequence[str], rows: Sequence[Sequence[float]]) -> np.ndarray:
        matrix = np.full((len(rows), len(self._columns)), math.nan, dtype=np.float32)
        # Features of templates that no trial has yet are unknown to the trees.
        known = [i for i, name in enumerate(names) if name in self._columns]
        matrix[:, [self._columns[names[i]] for i in known]] = np.array(rows, dtype=np.float32)[:, known]
        return matrix

    def scores(self, configs: Sequence[Config]) -> np.ndarray:
        """Return one score per config; higher is faster. Raises RuntimeError if `fit` was not called before."""
        if self._booster is None:
            raise RuntimeError("the cost model was not fitted")
        if not configs:
            return np.zeros(0)
        with _xgboost():
            scores: np.ndarray = self._booster.inplace_predict(self._matrix(*self._space.encode(configs)))
        return scores


@contextmanager
def _xgboost() -> Iterator[ModuleType]:
    """Import the library where a search first needs it, and yield it. If it cannot be loaded, as on a board without
    libgomp, only the search fails: SearchFailed is raised."""
    with library_calls("xgboost", Exception):
        import xgboost
    with library_calls("xgboost", xgboost.core.XGBoostError):
        yield xgboost
