"""`SearchingRunner` is what the runners of this machine's devices and of boards share: both build candidates here, and
make searchers that compute where candidates are built."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tuner.devices import Device
from tuner.measure.local.batches import compare
from tuner.measure.local.builder import LocalBuilder
from tuner.measure.local.measurer import Client, Measurer, executor_settings
from tuner.measure.local.searchers import Searchers
from tuner.measure.messages import ExecutorSettings
from tuner.measure.runner import Candidate, MeasureOptions, Runner, Spent
from tuning_db.record import Trial


class SearchingRunner(Runner):
    """A Runner with `searchers` that compute where its builders do. Use it as a context manager: it owns processes and
    a scratch folder."""

    def __init__(
        self,
        device: Device,
        options: MeasureOptions | None = None,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Start the processes, then build a kernel that is known to be good and run it on the device. `notice` is
        called from any thread with each line that a person should see meanwhile.

        Raises BadInput, with what to do, where the toolchain does not work, a plugin cannot be imported, or the device
        cannot run the kernel.
        """
        self.device = device
        self.options = options = options or MeasureOptions()
        self.spent = Spent()
        with ExitStack() as opened:
            here = not device.kind.is_remote
            builder = LocalBuilder(device, options, spent=self.spent, notice=notice, measured_here=here)
            self._builder = opened.enter_context(builder)
            self.searchers = opened.enter_context(Searchers(builder, options, notice))
            client = self._start_client(executor_settings(device, options, builder), notice, opened)
            builder.join_ray()
            self._measurer = Measurer(client, device.key, options, spent=self.spent, alone=builder.alone)
            self._opened = opened.pop_all()

    @abstractmethod
    def _start_client(self, settings: ExecutorSettings, notice: Callable[[str], object], opened: ExitStack) -> Client:
        """Start the processes that run candidates. What has to be closed is added to `opened`."""

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
