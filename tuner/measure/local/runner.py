"""`LocalRunner` measures on a device of this machine. It builds a batch with all cores, then measures the batch while
the builders are idle (see `batches`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from tuner.measure.local.batches import measure_in_order
from tuner.measure.local.measurer import Client
from tuner.measure.local.searching import SearchingRunner
from tuner.measure.messages import ExecutorSettings
from tuner.measure.runner import Candidate
from tuner.measure.workers.run_client import MeasureClient
from tuning_db.record import Trial


class LocalRunner(SearchingRunner):
    """A Runner that measures on a device of this machine."""

    def _start_client(self, settings: ExecutorSettings, notice: Callable[[str], object], opened: ExitStack) -> Client:
        self._client = MeasureClient(self._builder.server, settings, self.options.run_seconds, notice=notice)
        self._client.start()  # the builder's server ends the process
        return self._client

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """See `Runner.measure`."""
        yield from measure_in_order(self._builder, self._measurer, list(candidates), best_seconds)
