"""Measures what the kernels of a network take in it, one after the other. Start at `NetworkKernels`."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, median

from tuner.devices import Device
from tuner.graph import Placed
from tuner.graph.ir.hashes import WHOLE
from tuner.stages.bench import RUNS, StageBench
from tuner.stages.calls import Calls
from tuner.stages.costs import kernel_hashes
from tuner.stages.schedule import Stage


class NetworkKernels:
    """The kernels of a finished network on one device, which are compiled once.

    Raises BadInput as `Calls.of` and `StageBench` do, RuntimeError if the device refuses a kernel.
    """

    def __init__(self, placed: Placed, device: Device) -> None:
        calls = Calls.of(placed)
        functions = calls.module.functions.items()
        whole = {g.name_hint: f.attrs[WHOLE] for g, f in functions if f.attrs is not None and WHOLE in f.attrs}
        self._hashes = [whole.get(c.name, own) for c, own in zip(calls.kernels, kernel_hashes(calls), strict=True)]
        self._stages = [Stage(((i,),)) for i in range(len(self._hashes))]
        self._bench = StageBench(placed, calls, device)

    def seconds(self, runs: int = RUNS) -> dict[str, float]:
        """Return the seconds of every kernel, by its `kernel_hash`: the median of `runs` runs of the whole network.

        A kernel that is called several times gets the mean of its calls. A kernel that writes a part of a concatenation
        stands for the one that writes a tensor of its own. Kernels are timed in the network because their times differ
        elsewhere. A kernel that runs alone again and again finds its operands in nearer caches. One that runs now and
        then finds a processor's threads asleep. Raises RuntimeError as the class does.
        """
        times = self._bench.seconds(self._stages, runs)
        found: dict[str, list[float]] = defaultdict(list)
        for name, stage in zip(self._hashes, self._stages, strict=True):
            found[name].append(median(times[stage]))
        return {name: fmean(seconds) for name, seconds in found.items()}
