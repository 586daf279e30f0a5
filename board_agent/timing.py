"""This module decides how often a call is repeated: start at `repeat`.

A call that is clearly slower than the best so far is repeated only a few times. One that is close to the best is
repeated until its median is precise. `repeat` gets the seconds of each call from a function and reads no clock itself.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

BURST_SECONDS = 0.006  # least time of one candidate's turn in a comparison
BURST_CALLS = 3  # least calls in a turn
BURST_MOST = 300  # most calls in a turn; a kernel that takes a microsecond would otherwise need thousands
_TRIES = 2


@dataclass(frozen=True)
class Repetition:
    """The rules that say when repeating stops. Ratios compare seconds per call.

    `least` and `most` bound the number of calls. No call follows once the calls took `seconds` in total. A candidate
    whose fastest call is slower than the best by the factor `give_up` is not repeated beyond `least`. Where the median
    is within the factor `near` of the best, half the width of its confidence interval over the median must be at most
    `precision`; elsewhere at most `coarse`.
    """

    least: int = 3
    most: int = 300
    seconds: float = 0.05
    give_up: float = 1.5
    near: float = 1.15
    precision: float = 0.015
    coarse: float = 0.04


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the true median with about 95 % confidence.

    It is computed from order statistics and assumes nothing about the distribution, because timings have a long tail.
    At least one time is needed; for few times the interval is their whole range.
    """
    ordered = sorted(times)
    n = len(ordered)
    half = 0.98 * math.sqrt(n)
    low = math.floor((n - 1) / 2 - half)
    return ordered[max(0, low)], ordered[min(n - 1, n - 1 - low)]


def _sure(times: Sequence[float], policy: Repetition, best_seconds: float | None) -> bool:
    low, high = median_interval(times)
    middle = median(times)
    near = best_seconds is None or middle <= best_seconds * policy.near
    return (high - low) / 2 <= middle * (policy.precision if near else policy.coarse)


def repeat(call: Callable[[], float], policy: Repetition, best_seconds: float | None = None) -> list[float]:
    """Repeat a call by the rules of `policy` and return the seconds of every call.

    `call()` makes one call and returns its seconds.
    """
    times: list[float] = []
    total = 0.0
    while len(times) < policy.most:
        times.append(call())
        total += times[-1]
        hopeless = best_seconds is not None and min(times) > best_seconds * policy.give_up
        if hopeless and (len(times) >= policy.least or total >= policy.seconds / 4):
            break
        if total >= policy.seconds and len(times) >= 2:
            break
        # The interval's rank formula means nothing for fewer than six values. It is checked only at every fourth call,
        # because a check sorts all times.
        if len(times) >= max(6, policy.least) and len(times) % 4 == 0 and _sure(times, policy, best_seconds):
            break
    return times


def in_repeats(times: Sequence[float], repeats: int = 10) -> list[float]:
    """Summarise `times` by at most `repeats` values: the medians of consecutive blocks of nearly equal length."""
    count = min(repeats, len(times))
    edges = [round(i * len(times) / count) for i in range(count + 1)]
    return [median(times[a:b]) for a, b in zip(edges, edges[1:])]


def undisturbed(once: Callable[[], float]) -> float:
    """Return the seconds of a call that no other process interrupted.

    A call that was preempted measures the scheduler's time slices rather than the kernel, so it is repeated once. If
    that is preempted too, the faster of the two counts.
    """
    fastest = float("inf")
    for _ in range(_TRIES):
        before = _preemptions()
        fastest = min(fastest, once())
        if _preemptions() == before:
            break
    return fastest


def _preemptions() -> int:
    """Count how often a thread of this process lost its core to another process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def burst(run: Callable[[], float]) -> float:
    """Return the median seconds of a few calls.

    One call before them brings code and data back into the caches after the turns of other candidates.
    """
    run()
    times: list[float] = []
    total = 0.0
    while len(times) < BURST_CALLS or (total < BURST_SECONDS and len(times) < BURST_MOST):
        times.append(run())
        total += times[-1]
    return median(times)
