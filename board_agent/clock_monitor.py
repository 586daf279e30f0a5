"""This module watches the speed of a device by measuring a reference kernel repeatedly: start at `ClockMonitor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from board_agent.timing import Repetition

CHANGE = 0.1  # of the reference time; measurements before and after a larger change cannot be compared
WARM_CALLS = 5
WINDOW = Repetition(least=40, most=200, seconds=0.005, precision=0.01)
_SECONDS = 5.0  # least time between measurements of the kernel
_SHARE = 0.005  # largest share of the time that these measurements may take; it lengthens the pauses if needed
# Attempts and the seconds between them, where a measurement shows a change. A short disturbance is no change.
_TRIES, _PAUSE = 4, 0.02


def is_change(ratio: float) -> bool:
    """Tell whether the ratio of a time to an earlier one means that the device's speed changed."""
    return not 1 / (1 + CHANGE) <= ratio <= 1 + CHANGE


class ClockMonitor:
    """A monitor that measures the speed of one device by a reference kernel.

    `times` returns the seconds of calls of the kernel, repeated as WINDOW says after WARM_CALLS warm-up calls.
    `seconds` is what a call took when the kernel was last measured.
    """

    def __init__(
        self,
        times: Callable[[], Sequence[float]],
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._times, self.seconds, self._clock = times, seconds, clock
        self._due = 0.0
        self._measured = clock()

    @property
    def age(self) -> float:
        """Return the seconds since the last measurement."""
        return self._clock() - self._measured

    def is_due(self) -> bool:
        return self._clock() >= self._due

    def measure(self) -> float:
        """Measure the kernel and return its seconds per call.

        A time that differs from the last one is measured again a few times. If all of them differ, the least counts.
        Raises what `times` raises.
        """
        found: list[float] = []
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            began = self._clock()
            found.append(median(self._times()))
            if self.seconds is not None and not is_change(found[-1] / self.seconds):
                break
        self.seconds = found[-1] if len(found) < _TRIES else min(found)
        self._measured = self._clock()
        self._due = self._measured + max(_SECONDS, (self._measured - began) / _SHARE)
        return self.seconds
