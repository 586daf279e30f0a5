"""`BoardRunner` measures the candidates of one run on equal boards (see `fleet`) and builds them on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice

from tuner.measure.boards.fleet import Fleet
from tuner.measure.boards.under_way import UnderWay
from tuner.measure.local.batches import Best, keep_best, measure_in_order
from tuner.measure.local.measurer import Client
from tuner.measure.local.searching import SearchingRunner
from tuner.measure.messages import ExecutorSettings
from tuner.measure.runner import Candidate
from tuner.measure.workers.batch import Building
from tuning_db.record import Trial

_LEAST_RESERVE = 4  # candidates that are built, or being built, beside those that boards have


class BoardRunner(SearchingRunner):
    """Builds as LocalRunner does, but runs candidates on boards: each on the next free board, while others are built
    here."""

    _under_way: UnderWay | None = None

    def _start_client(self, settings: ExecutorSettings, notice: Callable[[str], object], opened: ExitStack) -> Client:
        """Start the boards. `notice` is also told of boards that go away, come back, or are in others' use."""
        self._client = Fleet(self._builder.server, settings, self.options.run_seconds, notice)
        opened.enter_context(self._client)
        self._client.start()
        return self._client

    @property
    def width(self) -> int:
        """See `Runner.width`."""
        return self._client.width

    @property
    def ready(self) -> int:
        """See `Runner.ready`."""
        return 0 if self._under_way is None else self._under_way.ready

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """See `Runner.measure`."""
        if self.width == 1:
            yield from measure_in_order(self._builder, self._measurer, list(candidates), best_seconds)
            return
        began, before = time.perf_counter(), self.spent.run_seconds
        under_way = self._under_way = UnderWay(self.width)
        wanted, best = iter(candidates), Best()
        reserve = max(_LEAST_RESERVE, self.width // 2)
        try:
            while True:
                while len(under_way) <= self.width + reserve and (batch := list(islice(wanted, reserve))):
                    if not best:
                        best[batch[0].workload] = best_seconds
                    building = self._builder.prepare(batch)
                    under_way.begin(building, partial(self._measure_one, building, best))
                if not under_way:
                    return
                trial = under_way.next()
                keep_best(best, trial)
                self.spent.run_seconds = before + time.perf_counter() - began
                yield trial
        finally:
            with self._client.given_up():
                self._builder.remove(under_way.close())
            self.spent.run_seconds = before + time.perf_counter() - began

    def _measure_one(self, building: Building, best: Best, place: int) -> Trial:
        """Measure a candidate with the incumbent's time as it is known when the measurement begins."""
        built = building.built(place)
        try:
            return self._measurer.measure(built, best.get(built.candidate.workload))
        finally:
            self._builder.remove([built.library])
