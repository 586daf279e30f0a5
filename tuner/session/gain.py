"""Choose the task that is worth the next trials: the one that promises most for the whole network. Start at
`expected_gain`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.session.task import TaskState

# After n trials, an unknown space is assumed to promise OPTIMISM / n**1.5 per trial (0.3 % at 16, 0.02 % at 96).
OPTIMISM = 0.2


def slope(curve: Sequence[float]) -> float:
    """Return the relative improvement per trial over the last third of a task's trials (at least 8). It is never
    negative."""
    n = len(curve)
    window = min(n - 1, max(8, n // 3))
    if window < 1 or math.isinf(curve[-1]):
        return 0.0
    earlier = curve[n - 1 - window]
    return 0.0 if math.isinf(earlier) else math.log(earlier / curve[-1]) / window


def expected_gain(state: TaskState, typical_seconds: float) -> float:
    """Return the seconds that the next trial is expected to take off one inference of the network. They are the sum of
    the recent slope and of what optimism allows, times the task's share of the network's time.

    `typical_seconds` is the time that is assumed of a task without a time.
    """
    best = state.trials.best_seconds if math.isfinite(state.trials.best_seconds) else typical_seconds
    promise = slope(state.trials.curve) + OPTIMISM / max(1, state.begun) ** 1.5
    return promise * best * state.task.occurrences


def most_promising(states: Sequence[TaskState]) -> TaskState:
    """Return the task that gets the next batch. `states` are the open tasks, at least one. A task below the floor of
    trials comes first."""
    starved = [s for s in states if s.below_floor]
    if starved:
        return starved[0]
    known = [s.trials.best_seconds for s in states if math.isfinite(s.trials.best_seconds)]
    typical = sum(known) / len(known) if known else 1.0
    return max(states, key=lambda s: expected_gain(s, typical))
