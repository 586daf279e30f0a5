"""How often to repeat a call: a few times when it is clearly worse than the best, until the median is sure when close.

`repeat` asks a function for the seconds of one more call and decides when to stop; nothing here reads a clock.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

BURST_SECONDS = 0.006  # of one candidate's turn in a comparison
BURST_CALLS = 3
BURST_MOST = 300  # calls: of a kernel that takes a microsecond the seconds alone would ask for thousands
_TRIES = 2


@dataclass(frozen=True)
class Repetition:
    """When to stop repeating. Ratios are of seconds per call.

    `least`/`most`: calls at least and at most; `seconds`: no more calls once they took this long in total.
    `give_up`: a candidate whose fastest call is this much slower than the best is not repeated beyond `least`.
    `near`: within this ratio of the best the median's interval must be within `precision`, else within `coarse`
    (half its width over the median).
    """

    least: int = 3
    most: int = 300
    seconds: float = 0.05
    give_up: float = 1.5
    near: float = 1.15
    precision: float = 0.015
    coarse: float = 0.04


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the true median with about 95 % confidence, from order statistics: no assumption on
    the distribution (timings have a long tail). Needs at least one time; few times give their whole range."""
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
    """The seconds of every call made. `call()` makes one call and returns its seconds."""
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
        # The interval's rank formula means nothing below six values; checking it every time would cost n log n.
        if len(times) >= max(6, policy.least) and len(times) % 4 == 0 and _sure(times, policy, best_seconds):
            break
    return times


def in_repeats(times: Sequence[float], repeats: int = 10) -> list[float]:
    """At most `repeats` values that stand for `times`: the medians of consecutive blocks of nearly equal length."""
    count = min(repeats, len(times))
    edges = [round(i * len(times) / count) for i in range(count + 1)]
    return [median(times[a:b]) for a, b in zip(edges, edges[1:])]


def undisturbed(once: Callable[[], float]) -> float:
    """The seconds of a call that nothing else interrupted. Where other work keeps taking the cores away, the fastest
    of two calls: a preempted one tells about the scheduler's time slices, not about the kernel."""
    fastest = float("inf")
    for _ in range(_TRIES):
        before = _preemptions()
        fastest = min(fastest, once())
        if _preemptions() == before:
            break
    return fastest


def _preemptions() -> int:
    """How often any thread of this process lost its core to another process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def burst(run: Callable[[], float]) -> float:
    """The median of a few calls; one before them brings code and data back after the other candidates' turns."""
    run()
    times: list[float] = []
    total = 0.0
    while len(times) < BURST_CALLS or (total < BURST_SECONDS and len(times) < BURST_MOST):
        times.append(run())
        total += times[-1]
    return median(times)
