"""This module measures for stages.py how well sums of stages order whole schedules. Start at `order`.

The question is that of the paper on inter-operator parallelism (ICLR 2020 submission), section 5.7.
"""

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

RUNS = 3  # of a schedule in a turn


def random_schedule(
    graph: OperatorGraph, random: Random, widest: int, merges: Callable[[Stage], bool] = lambda _stage: False
) -> Schedule:
    """Make a random schedule.

    The groups of a stage begin with operators that can run, and are extended by operators that only waited for them.
    Half of the stages that can be merged and that `merges` allows are merged.
    """
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
    """Return the first `count` schedules that differ in their stages of several groups.

    Other stages do not distinguish schedules, because their kernels run one after the other.
    """
    found: dict[frozenset[Stage], Schedule] = {}
    for schedule in made:
        found.setdefault(frozenset(s for s in schedule if len(s.groups) > 1), schedule)
        if len(found) == count:
            break
    return list(found.values())


def pair_order(one: Sequence[float], other: Sequence[float], apart: float = 0.0) -> tuple[float | None, float]:
    """Compare the order of pairs in two lists, for the pairs that differ in the second list by more than `apart`.

    `apart` is a share of the smaller value. Return the share of these pairs that both lists have in the same order
    (None if there are no such pairs), and their share of all pairs.
    """
    pairs = [
        (a, b)
        for a, b in combinations(range(len(one)), 2)
        if abs(other[a] - other[b]) > apart * min(other[a], other[b])
    ]
    same = fmean((one[a] < one[b]) == (other[a] < other[b]) for a, b in pairs) if pairs else None
    return same, len(pairs) / math.comb(len(one), 2)


def ceiling(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the share of pairs that a perfect prediction would put in the measured order.

    It is estimated from the correlation r of the two halves of the turns. The reliability of all turns together is
    2r / (1 + r) (Spearman and Brown, 1910), and its root is their correlation with the true times. For two normal
    variables the share of pairs in the same order follows from their correlation.
    """
    try:
        halves = max(0.0, correlation(one, other))
    except StatisticsError:  # all schedules take the same time
        halves = 0.0
    return 0.5 + math.asin(math.sqrt(2 * halves / (1 + halves))) / math.pi


def in_turns(run: Callable[[int], Sequence[float]], count: int, turns: int, random: Random) -> list[list[list[float]]]:
    """Measure `count` schedules in several turns and return, for every turn, the times of each.

    Every turn has a new order, because a fixed order might always favour the schedules that come first.
    """
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
    """Compare the predicted and the measured times of random schedules, and return the figures of stages.py.

    The prediction is the sum of the times of the stages. Schedules are measured in turns. Those that cannot run on the
    device are left out (on CUDA some kernels must be alone in a stage).
    """
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
