"""Tells whether a device keeps its speed, from a known good kernel that is measured again now and then.

`ReferenceKernel` measures that kernel where candidates run; `Drift` keeps the times, on the tuner's side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from board_agent.clock_monitor import WARM_CALLS, WINDOW, ClockMonitor, is_change
from tuner.errors import DeviceLost
from tuner.measure.codegen.toolchain import preflight_data, preflight_result
from tuner.measure.failures import describe
from tuner.measure.messages import CompareJob, ExecutorSettings
from tuner.measure.targets.executor import Executor

_DENORMAL = 2.0**-140  # factor that makes the preflight's data denormal
_COMPARE_SECONDS = 1.0  # age of the last measurement from which a comparison asks for another


class ReferenceKernel:
    """The preflight kernel, which is loaded and timed where candidates run. `keeps_denormals` says whether the device
    computes with denormal numbers, or takes them for zeros, as GPUs may."""

    keeps_denormals = True

    def __init__(
        self, settings: ExecutorSettings, executor: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._executor = settings, executor
        self._clock_monitor = ClockMonitor(self._times, settings.reference_seconds, clock)

    def problem(self) -> str | None:
        """Run the kernel for the first time, which starts the thread pool. Return one line if it cannot be loaded or
        computes a wrong result, else None. Raises DeviceLost."""
        try:
            data = preflight_data(self._settings.threads)
            tiny = data * np.float32(_DENORMAL)
            given, small, out = (self._executor.operand(a).tensor for a in (data, tiny, np.zeros_like(data)))
            self._function, self._arguments = self._executor.load(self._settings.preflight), lambda: (given, out)
            self._executor.call(self._function, lambda: (small, out))
            self._executor.ready()
            self.keeps_denormals = np.array_equal(self._executor.array(out), preflight_result(tiny))
            self._executor.call(self._function, self._arguments)
            right = np.array_equal(self._executor.array(out), preflight_result(data))
            return None if right else "a kernel that adds numbers computed something else"
        except DeviceLost:
            raise
        except Exception as error:
            return describe(error)

    def _times(self) -> list[float]:
        return self._executor.steady(self._function, self._arguments, WINDOW, WARM_CALLS)

    def is_due(self, job: object) -> bool:
        """Tell whether to measure the kernel before this job."""
        return self._clock_monitor.is_due() or (
            isinstance(job, CompareJob) and self._clock_monitor.age >= _COMPARE_SECONDS
        )

    def measure(self) -> float:
        """Measure the kernel's seconds per call, see `ClockMonitor.measure`. Raises what the executor raises."""
        return self._clock_monitor.measure()


@dataclass(eq=False)
class Interval:
    """The time that passes between two measurements of the reference kernel. `ratio` is the kernel's time at the end
    divided by its time at the beginning, None until the end."""

    ratio: float | None = None

    @property
    def is_disturbed(self) -> bool:
        """Tell whether the speed changed so much that nothing measured in this interval can be compared."""
        return self.ratio is not None and is_change(self.ratio)


class Drift:
    """Keeps the reference kernel's times on the device called `name`, over a run. `interval` is the current one.
    `notice` is called with a line about each change of speed."""

    def __init__(self, name: str, notice: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._notice, self._clock = name, notice, clock
        self._seconds: list[float] = []
        self._when = self._level = 0.0
        self.interval = Interval()

    def add(self, seconds: float) -> None:
        """Add a measurement of the reference kernel: the current interval ends, and another begins."""
        now = self._clock()
        if self._seconds:
            self.interval.ratio = seconds / self._seconds[-1]
            self._warn(seconds, now - self._when)
        else:
            self._level = seconds
        self._seconds.append(seconds)
        self._when, self.interval = now, Interval()

    def _warn(self, seconds: float, age: float) -> None:
        """Report a change of speed, whether it came at once or little by little since the last report."""
        ratio = seconds / self._level
        if self.interval.is_disturbed:
            ratio = self.interval.ratio or ratio
            then = f"results of the last {age:.0f} s are marked"
        elif is_change(ratio):
            then = "little by little"
        else:
            return
        how = "slowed down" if ratio > 1 else "became faster"
        self._notice(f"{self._name} {how} by {abs(ratio - 1):.0%}: {then}")
        self._level = seconds

    @property
    def last(self) -> float | None:
        return self._seconds[-1] if self._seconds else None

    @property
    def summary(self) -> str | None:
        """Return one line about the run's measurements, None if there are fewer than two."""
        if len(self._seconds) < 2:
            return None
        first, last = self._seconds[0], self._seconds[-1]
        most = max((s / first - 1 for s in self._seconds[1:]), key=abs)
        return (
            f"reference kernel on {self._name}: {first * 1e6:.4g} us at the start, {last * 1e6:.4g} us at the end, "
            f"at most {most:+.0%} between"
        )
