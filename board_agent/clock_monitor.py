"""When a kernel that is known to be good is measured again, and what it takes: how fast the device is now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from board_agent.timing import Repetition

CHANGE = 0.1  # of its time, beyond which measurements before and after do not compare
WARM_CALLS = 5
WINDOW = Repetition(least=40, most=200, seconds=0.005, precision=0.01)
_SECONDS = 5.0  # between measurements of the kernel,
_SHARE = 0.005  # or more, so that they take no more than this of the time
_TRIES, _PAUSE = 4, 0.02  # of a measurement that tells of a change: others' short work is none


def is_change(ratio: float) -> bool:
    """Of a time to an earlier one."""
    return not 1 / (1 + CHANGE) <= ratio <= 1 + CHANGE


class ClockMonitor:
    """Of one device. `times` gives the seconds of some calls of the kernel, after WARM_CALLS, as WINDOW says; `seconds`
    is what one took when it was last measured."""

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
        """Seconds since the last measurement."""
        return self._clock() - self._measured

    def is_due(self) -> bool:
        return self._clock() >= self._due

    def measure(self) -> float:
        """Seconds per call: as last time, or the least of a few measurements that all say otherwise. Raises what
        `times` raises."""
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
