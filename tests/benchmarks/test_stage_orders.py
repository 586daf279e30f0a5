"""What benchmarks/stages.py draws and counts: random schedules, and how good a prediction of them could be."""

from __future__ import annotations

from itertools import count
from random import Random
from statistics import fmean, median

import pytest

from tests.benchmarks.scripts import script
from tests.tuner.stages.graphs import branches
from tuner.stages import OperatorGraph, Schedule, StageOperator

orders = script("stage_orders")
MERGING = OperatorGraph((StageOperator("first"), *(StageOperator(f"conv {i}", (0,), "conv") for i in range(3))))


def drawn(merges: bool) -> list[Schedule]:
    return [orders.random_schedule(MERGING, Random(seed), 3, lambda _stage: merges) for seed in range(200)]


def test_some_stages_that_may_are_merged() -> None:
    stages = [stage for schedule in drawn(True) for stage in schedule if len(stage.groups) > 1]
    assert 0.4 < fmean(stage.merged for stage in stages) < 0.6


def test_none_are_merged_that_no_kernel_computes_as_one() -> None:
    assert not any(stage.merged for schedule in drawn(False) for stage in schedule)
    assert not any(s.merged for s in orders.random_schedule(branches(2, 2), Random(0), 3, lambda _stage: True))


def test_schedules_that_differ_in_single_operators_alone_are_one() -> None:
    made = drawn(True)
    wide = [frozenset(s for s in schedule if len(s.groups) > 1) for schedule in orders.different(iter(made), 1000)]
    assert len(set(wide)) == len(wide)
    assert set(wide) == {frozenset(s for s in schedule if len(s.groups) > 1) for schedule in made}
    assert orders.different((made[n % 200] for n in count()), 5) == orders.different(made, 5)


def test_every_turn_has_a_new_order() -> None:
    """A machine that becomes slower in the course of every turn tells nothing of one schedule then."""
    ran: list[int] = []

    def run(i: int) -> tuple[float, float]:
        ran.append(i)
        return 1.0 * i, len(ran) % 50

    turns = orders.in_turns(run, 50, 60, Random(0))
    assert [[times[0] for times in turn] for turn in turns] == 60 * [[1.0 * i for i in range(50)]]
    assert len({tuple(ran[n : n + 50]) for n in range(0, len(ran), 50)}) == 60
    drift = [median(turn[i][1] for turn in turns) for i in range(50)]
    assert max(drift) - min(drift) < 30


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_the_ceiling_is_what_the_truth_would_have(noise: float) -> None:
    random = Random(1)
    truth = [random.gauss(0, 1) for _ in range(600)]
    turns = [[t + random.gauss(0, noise) for t in truth] for _ in range(8)]
    took, one, other = (
        [fmean(times) for times in zip(*part, strict=True)] for part in (turns, turns[::2], turns[1::2])
    )
    assert orders.ceiling(one, other) == pytest.approx(orders.pair_order(truth, took)[0], abs=0.02)
    assert orders.pair_order(one, other)[0] < orders.ceiling(one, other)


def test_without_any_repeating_the_ceiling_is_a_coin() -> None:
    assert orders.ceiling([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == 0.5
    assert orders.ceiling([1.0, 1.0], [1.0, 2.0]) == 0.5
    assert orders.ceiling([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == pytest.approx(1.0)
