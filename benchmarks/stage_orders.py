"""How well sums of stages order whole schedules (paper 000, section 5.7), for stages.py. Start at `order`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations
from random import Random
from statistics import StatisticsError, correlation, fmean, median, pstdev, quantiles
from typing import Any

from tuner.stages import OperatorGraph, Schedule, Stage, check, total
from tuner.stages.bench import StageBench
from tuner.stages.costs import MeasuredCosts
from tuner.stages.schedule import can_merge

RUNS = 3  # of a schedule, in a turn


def random_schedule(
    graph: OperatorGraph, random: Random, widest: int, merges: Callable[[Stage], bool] = lambda _stage: False
) -> Schedule:
    """Stages of a few operators that can run, each followed by some that only needed it; those that `merges` allows are
    merged by the flip of a coin."""
    done: set[int] = set()
    stages = []
    width, growth = random.randint(1, widest), random.random()
    while len(done) < len(graph):
        free = [i for i in range(len(graph)) if i not in done and done.issuperset(graph.operators[i].reads)]
        groups = []
        for first in random.sample(free, min(len(free), random.randint(1, width))):
            group = [first]
            while random.random() < growth:
                have = done.union(group)
                behind = [
                    i
                    for i, o in enumerate(graph.operators)
                    if i not in have and group[-1] in o.reads and have.issuperset(o.reads)
                ]
                if not behind:
                    break
                group.append(behind[0])
            groups.append(tuple(group))
        stage = Stage(tuple(sorted(groups, key=lambda g: (-len(g), g))))
        if can_merge(graph, stage) and merges(stage) and random.random() < 0.5:
            stage = Stage(stage.groups, True)
        stages.append(stage)
        done.update(i for group in groups for i in group)
    check(graph, stages)
    return tuple(stages)


def different(made: Iterable[Schedule], count: int) -> list[Schedule]:
    """The first of those that differ in stages of several groups: all else is one kernel after the other."""
    found: dict[frozenset[Stage], Schedule] = {}
    for schedule in made:
        found.setdefault(frozenset(s for s in schedule if len(s.groups) > 1), schedule)
        if len(found) == count:
            break
    return list(found.values())


def pair_order(one: Sequence[float], other: Sequence[float], apart: float = 0.0) -> tuple[float | None, float]:
    """Of the pairs that differ in the second list by more than a share `apart`: the share that both lists have in the
    same order (None: there are none), and how many of all pairs they are."""
    pairs = [
        (a, b)
        for a, b in combinations(range(len(one)), 2)
        if abs(other[a] - other[b]) > apart * min(other[a], other[b])
    ]
    same = fmean((one[a] < one[b]) == (other[a] < other[b]) for a, b in pairs) if pairs else None
    return same, len(pairs) / math.comb(len(one), 2)


def ceiling(one: Sequence[float], other: Sequence[float]) -> float:
    """The share of pairs that whoever knows what schedules really take would order as they were measured: from what one
    half of the turns and the other have in common. What all turns have of the truth is 2r / (1 + r), r being the
    halves' correlation (Spearman and Brown, 1910); of two normal variables that correlate by its root so many pairs
    are in the same order."""
    try:
        halves = max(0.0, correlation(one, other))
    except StatisticsError:  # all take the same
        halves = 0.0
    return 0.5 + math.asin(math.sqrt(2 * halves / (1 + halves))) / math.pi


def in_turns(run: Callable[[int], Sequence[float]], count: int, turns: int, random: Random) -> list[list[list[float]]]:
    """Of every turn, what each of so many things took: in a new order every time, for what comes earlier in a turn may
    be faster in all of them."""
    found = []
    for _ in range(turns):
        times: dict[int, list[float]] = {i: list(run(i)) for i in random.sample(range(count), count)}
        found.append([times[i] for i in range(count)])
    return found


def order(
    bench: StageBench,
    costs: MeasuredCosts,
    made: Sequence[Schedule],
    turns: int,
    random: Random,
) -> dict[str, Any]:
    """Random schedules: what their stages take together, and what they take, in turns; without those that cannot be on
    the device (CUDA has kernels that must be alone)."""
    costs.prepare([stage for schedule in made for stage in schedule])
    made = [schedule for schedule in made if math.isfinite(total(costs, schedule))]
    predicted = [total(costs, schedule) for schedule in made]
    launched = [tuple(map(costs.divided, schedule)) for schedule in made]
    times = in_turns(lambda i: bench.schedule_seconds(launched[i], RUNS), len(made), turns, random)
    took, one, other = (
        [median(chain.from_iterable(found)) for found in zip(*part, strict=True)]
        for part in (times, times[::2], times[1::2])
    )
    noise = quantiles([abs(a - b) / min(a, b) for a, b in zip(one, other, strict=True)], n=10)[-1]
    clear, share = pair_order(predicted, took, noise)
    return {
        "schedules": len(made),
        "merged_stages_of_schedules": sum(s.merged for schedule in made for s in schedule),
        "order_accuracy": pair_order(predicted, took)[0],
        "ceiling": ceiling(one, other),
        "repeatability": pair_order(one, other)[0],
        "spread": pstdev(took) / fmean(took),
        "noise": noise,
        "clear_pairs": share,
        "order_accuracy_clear": clear,
        "repeatability_clear": pair_order(one, other, noise)[0],
        "predicted_over_measured": median(p / m for p, m in zip(predicted, took, strict=True)),
        "predicted_schedules_ms": [1e3 * seconds for seconds in predicted],
        "measured_schedules_ms": [1e3 * seconds for seconds in took],
    }
