"""Timing every call of an inference. Start at `Stopwatch`."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import Any

from tvm.runtime.vm import VMInstrumentReturnKind

from tuner.devices import timed_call
from tuner.graph.lowering.placed import COPY

# What is not timed: the virtual machine's own, and what switches streams between groups of kernels.
_OF_THE_MACHINE = ("vm.builtin.", "edgetune.stage.")


class Stopwatch:
    """An instrument for the virtual machine: `calls` names the calls of the last inference in order, `last` has their
    seconds. The machine's own are left out: their time is mostly that of looking. `awake`: a device is given every
    kernel twice, and the second is timed; else it may have to wake first, which takes threads up to 50 us."""

    def __init__(self, awake: bool = False) -> None:
        self._awake = awake
        self.calls: list[str] = []
        self.last: list[float] = []
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._started = 0.0

    def restart(self) -> None:
        """To be called before each inference."""
        self.calls.clear()
        self.last.clear()

    def medians(self) -> list[float]:
        """Seconds of each of `calls`: the median of all inferences."""
        return [median(self._seconds[i]) for i in range(len(self.calls))]

    def instrument(self, function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        """What the virtual machine calls before and after each function."""
        if name.startswith(_OF_THE_MACHINE):
            return VMInstrumentReturnKind.NO_OP
        device = arguments[-1].device
        if name != COPY and device.type != "cpu":
            # By events of the device's queue: to wait on the host for every kernel takes as long as a small one.
            if self._awake:
                function(*arguments)
            self._note(name, timed_call(device, function, *arguments))
            return VMInstrumentReturnKind.SKIP_RUN
        if before:
            self._started = time.perf_counter()
        else:
            self._note(name, time.perf_counter() - self._started)
        return VMInstrumentReturnKind.NO_OP

    def _note(self, name: str, seconds: float) -> None:
        self._seconds[len(self.calls)].append(seconds)
        self.calls.append(name)
        self.last.append(seconds)
