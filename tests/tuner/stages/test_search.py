"""The search: optimal against trying everything, within limits that it reports, and clear about what it refuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.stages.graphs import Drawn, branches, cheapest, graphs
from tuner.errors import BadInput
from tuner.stages import (
    Limits,
    OperatorGraph,
    Options,
    Stage,
    StageOperator,
    check,
    greedy,
    search,
    sequential,
    total,
)
from tuner.stages.blocks import blocks, chains
from tuner.stages.operators import numbers


@given(graphs(), st.integers(0, 1 << 30))
def test_nothing_takes_less(graph: OperatorGraph, seed: int) -> None:
    found = search(graph, Drawn(seed), Options(whole=True))
    check(graph, found.schedule)
    assert found.seconds == pytest.approx(cheapest(graph, Drawn(seed)))
    assert found.seconds == pytest.approx(total(Drawn(seed), found.schedule))


@given(graphs(), st.integers(0, 1 << 30))
def test_optimistic_estimates_change_nothing_and_spare_measurements(graph: OperatorGraph, seed: int) -> None:
    every, some = Drawn(seed), Drawn(seed, optimistic=True)
    assert search(graph, some).seconds == pytest.approx(search(graph, every).seconds)
    assert set(some.asked) <= set(every.asked)


@given(graphs(9), st.integers(0, 1 << 30), st.sampled_from([None, Limits(2, 2), Limits(1, 3), Limits(3, 1)]))
def test_never_worse_than_the_baselines_whatever_the_limits(
    graph: OperatorGraph, seed: int, limits: Limits | None
) -> None:
    costs = Drawn(seed)
    found = search(graph, costs, Options(limits, most=60))
    check(graph, found.schedule)
    assert found.sequential_seconds == pytest.approx(total(costs, sequential(graph)))
    rival = greedy(graph, limits and limits.groups)
    assert found.greedy_seconds == pytest.approx(total(costs, rival))
    assert found.seconds <= found.sequential_seconds + 1e-9
    assert found.seconds <= found.greedy_seconds + 1e-9
    if limits is not None:
        assert all(len(stage.groups) <= (limits.groups or 0) for stage in found.schedule)


@given(graphs(9), st.integers(0, 1 << 30))
def test_never_worse_than_greedy_stages_of_what_a_device_can_do(graph: OperatorGraph, seed: int) -> None:
    """Where it has fewer threads than a merged stage may have operators."""

    class TwoThreads(Drawn):
        def seconds(self, stage: Stage) -> float:
            return math.inf if len(stage.groups) > 2 and not stage.merged else super().seconds(stage)

    costs = TwoThreads(seed)
    found = search(graph, costs, Options(Limits(3, 2), most=60, widest=2))
    assert found.greedy_seconds == pytest.approx(total(costs, greedy(graph, 2)))
    assert found.seconds <= found.greedy_seconds + 1e-9


@given(graphs(9), st.integers(1, 9))
def test_blocks_partition_a_graph_in_order(graph: OperatorGraph, largest: int) -> None:
    for parts in (blocks(graph), blocks(graph, largest)):
        assert [i for part in parts for i in numbers(part)] == list(range(len(graph)))
    assert all(part.bit_count() <= largest for part in blocks(graph, largest))
    done = 0
    for part in blocks(graph):
        assert all(not done & ~graph.ancestors[i] for i in numbers(graph.all & ~done))
        done |= part


def test_a_joined_tensor_ends_a_block() -> None:
    """Where several operators write parts of it, and all that follows reads it."""
    reads = [(), (0,), (0,), (1, 2), (1, 2), (3, 4)]
    graph = OperatorGraph(tuple(StageOperator(f"o{i}", r) for i, r in enumerate(reads)))
    assert blocks(graph) == (0b1, 0b110, 0b11000, 0b100000)


@given(graphs(9))
def test_chains_partition_a_graph_in_order(graph: OperatorGraph) -> None:
    units = chains(graph)
    assert sorted(i for unit in units for i in unit) == list(range(len(graph)))
    done: set[int] = set()
    for unit in units:
        assert all(r in done for r in graph.operators[unit[0]].reads)
        assert all(graph.operators[b].reads == (a,) for a, b in pairwise(unit))
        done.update(unit)


@given(graphs(9))
def test_baselines_are_schedules(graph: OperatorGraph) -> None:
    check(graph, sequential(graph))
    check(graph, greedy(graph))


def test_one_group_a_branch_where_that_is_free() -> None:
    class Parallel:
        """As many operators at once as there are."""

        def seconds(self, stage: Stage) -> float:
            return 0.1 + max(len(group) for group in stage.groups)

        def estimate(self, stage: Stage) -> float | None:
            return None

        def correction(self) -> float:
            return 1.0

        def known(self, stage: Stage) -> bool:
            return True

        def is_rough(self, stage: Stage) -> bool:
            return False

        def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
            pass

    found = search(branches(3, 3, 2), Parallel())
    assert [len(stage.groups) for stage in found.schedule] == [1, 3, 1]
    assert found.seconds == pytest.approx(1.1 + 3.1 + 1.1)
    assert found.sequential_seconds == pytest.approx(1.1 * 10)


def test_merged_where_that_takes_less() -> None:
    class Merging(Drawn):
        def seconds(self, stage: Stage) -> float:
            return 1.0 if stage.merged else float(stage.members.bit_count())

    operators = [
        StageOperator("first"),
        *(StageOperator(f"conv {i}", (0,), "conv") for i in range(3)),
        StageOperator("pool", (0,)),
    ]
    found = search(OperatorGraph(tuple(operators)), Merging(0))
    assert found.seconds == 3.0
    assert [stage.text() for stage in found.schedule if stage.merged] == ["=1|2|3"]


def test_limits_are_kept_and_what_they_cut_is_reported() -> None:
    found = search(branches(4, 4, 4), Drawn(1), Options(Limits(2, 3)))
    inner = [stage for stage in found.schedule if len(stage.groups) > 1]
    assert all(len(stage.groups) <= 2 and len(stage.groups[0]) <= 3 for stage in inner)
    (block,) = found.blocks
    assert block.limits == Limits(2, 3)
    assert block.cut.groups > 0
    assert block.cut.operators > 0
    free = search(branches(4, 4, 4), Drawn(1), Options())
    assert (free.blocks[0].cut.groups, free.blocks[0].cut.operators) == (0, 0)
    assert free.seconds <= found.seconds


@pytest.mark.parametrize("lengths", [(8, 8, 8), (8,) * 8])
def test_limits_are_on_operators_where_chains_are_scheduled_as_one(lengths: tuple[int, ...]) -> None:
    class Parallel(Drawn):
        def seconds(self, stage: Stage) -> float:
            return 0.01 + max(map(len, stage.groups))

    graph = branches(*lengths)
    found = search(graph, Parallel(0), Options(Limits(2, 3), most=5000))
    check(graph, found.schedule)
    assert max(len(group) for stage in found.schedule for group in stage.groups) == 3
    assert max(len(stage.groups) for stage in found.schedule) == 2


def test_a_block_that_is_too_wide_is_narrowed() -> None:
    found = search(branches(*[3] * 8), Drawn(2), Options(most=20_000))
    (block,) = found.blocks
    assert block.operators == 24
    assert block.chains == 8
    assert 0 < block.transitions <= 20_000
    check(branches(*[3] * 8), found.schedule)


def test_where_time_is_up_only_what_is_known_is_used() -> None:
    costs = Drawn(3, optimistic=True)
    graph = branches(3, 3)
    found = search(graph, costs, may_go_on=lambda: False)
    assert not found.finished
    known = {*sequential(graph), *greedy(graph)}
    assert all(stage in known or len(stage.groups) == 1 for stage in found.schedule)
    assert found.seconds <= min(found.sequential_seconds, found.greedy_seconds)


def test_where_time_is_up_all_that_is_known_is_used() -> None:
    """What a repeated block measured, or an earlier run."""
    good = Stage(((1, 2), (3, 4)))

    class Known(Drawn):
        def seconds(self, stage: Stage) -> float:
            return 1e-3 if stage == good else super().seconds(stage)

        def known(self, stage: Stage) -> bool:
            return stage == good

    costs = Known(3, optimistic=True)
    found = search(branches(2, 2), costs, may_go_on=lambda: False)
    assert not found.finished
    assert good in found.schedule
    known = {good, *greedy(branches(2, 2))}
    assert all(stage in known for stage in costs.asked if len(stage.groups) > 1)


@given(graphs(9), st.integers(0, 1 << 30), st.booleans())
def test_what_is_chosen_was_not_measured_roughly(graph: OperatorGraph, seed: int, whole: bool) -> None:
    costs = Rough(seed)
    found = search(graph, costs, Options(whole=whole))
    assert found.finished
    assert not any(costs.is_rough(stage) for stage in found.schedule)
    assert found.seconds == pytest.approx(total(Drawn(seed), found.schedule))


@given(graphs(9), st.integers(0, 1 << 30))
def test_patience_only_leaves_out_stages_and_says_how_many(graph: OperatorGraph, seed: int) -> None:
    every, some = Drawn(seed, optimistic=True), Drawn(seed, optimistic=True)
    best = search(graph, every, Options(whole=True))
    found = search(graph, some, Options(whole=True, patience=1))
    check(graph, found.schedule)
    assert found.finished
    assert set(some.asked) <= set(every.asked)
    assert found.seconds <= min(found.sequential_seconds, found.greedy_seconds) + 1e-9
    left = sum(block.unmeasured for block in found.blocks)
    assert found.seconds == pytest.approx(best.seconds) or (found.seconds > best.seconds and left > 0)
    assert sum(block.unmeasured for block in best.blocks) == 0


def test_what_patience_left_out_is_a_line() -> None:
    """Where every stage that promises much gains nothing."""

    class Promising(Drawn):
        def seconds(self, stage: Stage) -> float:
            self.asked.append(stage)
            return 1.0 * stage.members.bit_count()

        def estimate(self, stage: Stage) -> float | None:
            return None if len(stage.groups) == 1 else 0.5 * stage.members.bit_count()

    every, some = Promising(0), Promising(0)
    search(branches(3, 3, 3), every)
    found = search(branches(3, 3, 3), some, Options(patience=2))
    (block,) = found.blocks
    assert len(set(some.asked)) < len(set(every.asked)) / 2
    assert block.unmeasured > 0
    assert f"{block.unmeasured} stages were not measured" in block.cut_text()


class Rough(Drawn):
    """What was prepared once is off by up to a tenth, as a measurement in few runs may be."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, optimistic=True)
        self._prepared: Counter[Stage] = Counter()

    def seconds(self, stage: Stage) -> float:
        off = Random(f"rough {stage.text()}").uniform(0.9, 1.1) if self.is_rough(stage) else 1.0
        return off * super().seconds(stage)

    def is_rough(self, stage: Stage) -> bool:
        return self._prepared[stage] == 1

    def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
        for stage in stages:
            self._prepared[stage] = max(self._prepared[stage], 1 if roughly else 2)


def test_blocks_are_measured_together() -> None:
    """In few runs of the network then."""

    class Prepared(Drawn):
        def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
            if roughly:
                rounds.append({number for number, block in enumerate(there) for s in stages if s.members & block})

    rounds: list[set[int]] = []
    graph = branches(2, 2)
    operators = list(graph.operators)
    for _ in range(2):
        last = len(operators) - 1
        behind = [replace(o, reads=tuple(r + last for r in o.reads)) for o in graph.operators[1:]]
        operators += behind
    network = OperatorGraph(tuple(operators))
    there = [block for block in blocks(network) if block.bit_count() > 1]
    search(network, Prepared(3, optimistic=True))
    assert len(there) == 3
    assert rounds[0] == {0, 1, 2}


def test_operators_that_are_not_in_order_are_refused_in_one_line() -> None:
    """So is a cycle: one of its operators reads a later one."""
    operators = (StageOperator("first"), StageOperator("early", (0, 2)), StageOperator("late", (1,)))
    with pytest.raises(BadInput, match="'early': reads 2, which does not come before it"):
        OperatorGraph(operators)


def test_a_cost_that_cannot_be_measured_is_named() -> None:
    class Broken(Drawn):
        def seconds(self, stage: Stage) -> float:
            if stage.members & 4:
                return math.inf
            return super().seconds(stage)

    with pytest.raises(BadInput, match=r"'0\.1'.*cost"):
        search(branches(2, 1), Broken(0))


@pytest.mark.parametrize("text", ["0|1", "1|0,2", "0|1|2,3", "=1|2", "0,0"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        check(branches(2), [Stage.from_text(part) for part in ["0", text]])


@given(graphs(9), st.integers(0, 99))
def test_stages_survive_being_written(graph: OperatorGraph, seed: int) -> None:
    for stage in search(graph, Drawn(seed)).schedule:
        assert Stage.from_text(stage.text()) == stage
