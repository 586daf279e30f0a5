"""Draw configs at random, as the baseline: every template is equally likely, then every valid config. Seeds are not
favoured."""

from __future__ import annotations

from collections.abc import Sequence

from templates.space import SearchSpace
from tuner.search.base import UnadvisedSearcher, rng_of
from tuner.search.untried import UntriedConfigs
from tuning_db.record import Config, Trial


class RandomSearcher(UnadvisedSearcher):
    """See this module's docstring."""

    def __init__(self, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> None:
        super().__init__()
        self._untried = UntriedConfigs(space, rng_of(seed, history))
        self.observe(history)

    def propose(self, n: int) -> list[Config]:
        found: list[Config] = []
        while len(found) < n and (config := self._untried.take()) is not None:
            found.append(config)
        return found

    def observe(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._untried.add(trial.config)
