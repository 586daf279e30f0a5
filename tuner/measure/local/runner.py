"""`LocalRunner` measures on a device of this machine. It builds a batch with all cores, then measures the batch while
the builders are idle (see `batches`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from tuner.devices import Device
from tuner.measure.local.batches import compare, measure_in_order
from tuner.measure.local.builder import LocalBuilder
from tuner.measure.local.measurer import Measurer, executor_settings
from tuner.measure.local.searchers import Searchers, SearchingRunner
from tuner.measure.runner import Candidate, MeasureOptions, Spent
from tuner.measure.workers.run_client import MeasureClient
from tuning_db.record import Trial


class LocalRunner(SearchingRunner):
    """A Runner that measures on a device of this machine. Use it as a context manager: it owns processes and a scratch
    folder."""

    def __init__(
        self,
        device: Device,
        options: MeasureOptions | None = None,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Start the processes, then build and run a kernel that is known to be good. `notice` is called from any thread
        with each line that a person should see meanwhile.

        Raises BadInput, with what to do, where the toolchain does not work or a plugin cannot be imported.
        """
        self.device = device
        self.options = options = options or MeasureOptions()
        self.spent = Spent()
        with ExitStack() as opened:
            self._builder = opened.enter_context(LocalBuilder(device, options, spent=self.spent, notice=notice))
            self.searchers = opened.enter_context(Searchers(self._builder, options, notice))
            settings = executor_settings(device, options, self._builder)
            self._client = MeasureClient(self._builder.server, settings, options.run_seconds, notice=notice)
            self._client.start()
            self._builder.join_ray()
            alone = self._builder.alone
            self._measurer = Measurer(self._client, device.key, options, spent=self.spent, alone=alone)
            self._opened = opened.pop_all()

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """See `Runner.measure`."""
        yield from measure_in_order(self._builder, self._measurer, list(candidates), best_seconds)

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
