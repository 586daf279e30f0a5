"""Times every call of an inference. Start at `Stopwatch`."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import Any

from tvm.runtime.vm import VMInstrumentReturnKind

from tuner.devices.opencl.control import timed_call

COPY = "runtime.TVMTensorCopyFromTo"  # TVM's function by which a network copies between devices

# The virtual machine's own functions, and those that switch streams between groups of kernels, are not timed.
_OF_THE_MACHINE = ("vm.builtin.", "edgetune.stage.")


class Stopwatch:
    """An instrument of the virtual machine that times each call.

    `calls` names the calls of the last inference in order, and `last` has their seconds. The machine's own functions
    are left out, since most of their time would be that of the measurement. With `awake`, a device is given every
    kernel twice, and the second run is timed. Otherwise the device may have to wake first, which takes threads up to
    50 us.
    """

    def __init__(self, awake: bool = False) -> None:
        self._awake = awake
        self.calls: list[str] = []
        self.last: list[float] = []
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._started = 0.0

    def restart(self) -> None:
        """Forget the calls of the last inference. This is to be called before each inference."""
        self.calls.clear()
        self.last.clear()

    def medians(self) -> list[float]:
        """Return the seconds of each of `calls`, as the median of all inferences."""
        return [median(self._seconds[i]) for i in range(len(self.calls))]

    def instrument(self, function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        """Time a function. The virtual machine calls this before and after each function."""
        if name.startswith(_OF_THE_MACHINE):
            return VMInstrumentReturnKind.NO_OP
        device = arguments[-1].device
        if name != COPY and device.type != "cpu":
            # Events of the device's queue time it: to wait on the host for a kernel takes as long as a small kernel.
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
