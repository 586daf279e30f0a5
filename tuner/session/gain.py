"""Which task is worth the next trials: the one that promises most for the whole network. Start at `expected_gain`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.session.task import TaskState

# What an unknown space promises per trial after n of them: OPTIMISM / n**1.5 (0.3 % at 16, 0.02 % at 96).
OPTIMISM = 0.2


def slope(curve: Sequence[float]) -> float:
    """Relative improvement per trial over the last third of a task's trials (at least 8), never negative."""
    n = len(curve)
    window = min(n - 1, max(8, n // 3))
    if window < 1 or math.isinf(curve[-1]):
        return 0.0
    earlier = curve[n - 1 - window]
    return 0.0 if math.isinf(earlier) else math.log(earlier / curve[-1]) / window


def expected_gain(state: TaskState, typical_seconds: float) -> float:
    """Seconds that the next trial is expected to take off one inference of the network: the recent slope, or what
    optimism allows, times the task's share of the network's time.

    `typical_seconds`: what is assumed of a task that has no time yet.
    """
    best = state.best_seconds if math.isfinite(state.best_seconds) else typical_seconds
    promise = slope(state.curve) + OPTIMISM / max(1, state.begun) ** 1.5
    return promise * best * state.task.occurrences


def most_promising(states: Sequence[TaskState]) -> TaskState:
    """The task to give the next batch; `states` are the open ones, at least one."""
    starved = [s for s in states if s.below_floor]
    if starved:
        return starved[0]
    known = [s.best_seconds for s in states if math.isfinite(s.best_seconds)]
    typical = sum(known) / len(known) if known else 1.0
    return max(states, key=lambda s: expected_gain(s, typical))
