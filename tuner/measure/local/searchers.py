"""`Searchers` makes the searchers of a run, so that they compute where the run's candidates are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from templates.space import SearchSpace
from tuner.measure.local.builder import LocalBuilder
from tuner.measure.ray.search import RaySearchers
from tuner.measure.runner import Closing, MeasureOptions
from tuner.search import Searcher, make_searcher
from tuning_db.record import Trial


class Searchers(Closing):
    """Makes searchers. Where builders run on other machines, a searcher computes on one of them, else here."""

    def __init__(self, builder: LocalBuilder, options: MeasureOptions, notice: Callable[[str], object]) -> None:
        """`notice` is called with each line on where the searchers are."""
        self._ray: RaySearchers | None = None
        if options.ray is not None:
            self._ray = RaySearchers(
                builder.server, options.ray, options.plugins, nodes=lambda: builder.nodes_elsewhere, say=notice
            )

    def make(self, spec: str, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> Searcher:
        """Make a searcher as `tuner.search.make_searcher` does."""
        make = make_searcher if self._ray is None else self._ray.make
        return make(spec, space, seed, history)

    def close(self) -> None:
        if self._ray is not None:
            self._ray.close()
