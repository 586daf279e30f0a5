"""Propose every valid config once, in the order of the knobs, with the templates taken in turn. Grid search is for
small spaces, and for recording a whole one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from templates.space import SearchSpace
from tuner.search.base import UnadvisedSearcher
from tuning_db.record import Config, Trial


class GridSearcher(UnadvisedSearcher):
    """See this module's docstring."""

    def __init__(self, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> None:
        super().__init__()
        self._known: set[str] = set()
        self._left = [iter(s) for s in space.spaces]
        self.observe(history)

    def propose(self, n: int) -> list[Config]:
        found: list[Config] = []
        while len(found) < n and self._left:
            rest = self._left.pop(0)
            config = self._next(rest)
            if config is not None:
                found.append(config)
                self._left.append(rest)
        return found

    def _next(self, rest: Iterator[Config]) -> Config | None:
        return next((c for c in rest if c.key not in self._known), None)

    def observe(self, trials: Sequence[Trial]) -> None:
        self._known.update(t.config.key for t in trials)
