"""`BoardRunner` measures the candidates of one run on equal boards (see `fleet`) and builds them on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice

from tuner.devices import Device
from tuner.measure.boards.fleet import Fleet
from tuner.measure.boards.under_way import UnderWay
from tuner.measure.local.batches import Best, compare, keep_best, measure_in_order
from tuner.measure.local.builder import LocalBuilder
from tuner.measure.local.measurer import Measurer, executor_settings
from tuner.measure.local.searchers import Searchers, SearchingRunner
from tuner.measure.runner import Candidate, MeasureOptions, Spent
from tuner.measure.workers.batch import Building
from tuning_db.record import Trial

_LEAST_RESERVE = 4  # candidates that are built, or being built, beside those that boards have


class BoardRunner(SearchingRunner):
    """Builds as LocalRunner does, but runs candidates on boards: each on the next free board, while others are built
    here."""

    def __init__(
        self,
        device: Device,
        options: MeasureOptions | None = None,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Start the processes, then build a kernel that is known to be good and run it on the boards. `notice` is as in
        LocalRunner, and is also told of boards that go away, come back, or are in others' use.

        Raises BadInput, with what to do, where the toolchain does not work, a plugin cannot be imported, or no board
        can run the kernel.
        """
        self.device = device
        self.options = options = options or MeasureOptions()
        self.spent = Spent()
        self._under_way: UnderWay | None = None
        with ExitStack() as opened:
            builder = LocalBuilder(device, options, spent=self.spent, notice=notice, measured_here=False)
            self._builder = opened.enter_context(builder)
            self.searchers = opened.enter_context(Searchers(self._builder, options, notice))
            settings = executor_settings(device, options, self._builder)
            self._client = opened.enter_context(Fleet(self._builder.server, settings, options.run_seconds, notice))
            self._client.start()
            self._builder.join_ray()
            alone = self._builder.alone
            self._measurer = Measurer(self._client, device.key, options, spent=self.spent, alone=alone)
            self._opened = opened.pop_all()

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

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """See `Runner.compare`."""
        return compare(self._builder, self._measurer, candidates)

    def disturbed(self) -> list[Trial]:
        """See `Runner.disturbed`."""
        return self._measurer.disturbed()

    def remarks(self) -> list[str]:
        """See `Runner.remarks`."""
        return self._measurer.remarks()

    def close(self) -> None:
        """See `Runner.close`."""
        self._opened.close()
