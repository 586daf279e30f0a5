"""Stages are timed in whole schedules: every stage in one of them, each behind what the network runs before it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.stages.graphs import Drawn, branches, graphs
from tuner.stages import Limits, OperatorGraph, Stage, check, search, sequential
from tuner.stages.lattice import Lattice
from tuner.stages.passes import around, passes


@given(graphs(7), st.randoms(use_true_random=False))
def test_every_stage_is_in_one_pass(graph: OperatorGraph, random: Random) -> None:
    stages = Lattice.of(graph, Limits()).stages
    random.shuffle(stages)
    found = []
    for schedule, where in passes(graph, stages):
        check(graph, schedule)
        assert where
        found += [schedule[at] for at in where]
        assert all(len(stage.groups) == len(stage.groups[0]) == 1 for i, stage in enumerate(schedule) if i not in where)
    assert sorted(s.text() for s in found) == sorted(s.text() for s in stages)


@given(graphs(9), st.integers(0, 1 << 30), st.randoms(use_true_random=False))
def test_the_stages_of_one_schedule_are_in_one_pass(graph: OperatorGraph, seed: int, random: Random) -> None:
    """Though others are waiting that overlap with them."""
    schedule = search(graph, Drawn(seed)).schedule
    others = Lattice.of(graph, Limits()).stages
    random.shuffle(others)
    first, where = next(passes(graph, [*schedule, *others]))
    assert [first[at] for at in where] == list(schedule)


def test_one_operator_after_the_other_takes_one_pass() -> None:
    graph = branches(3, 3, 2)
    ((schedule, where),) = passes(graph, sequential(graph))
    assert schedule == sequential(graph)
    assert where == tuple(range(len(graph)))


def test_before_a_stage_comes_what_the_caches_hold() -> None:
    """Of the first stage also what the last inference ended with; a tensor counts once."""
    schedule = tuple(Stage(((i,),)) for i in range(8))
    tensors = {i: {f"tensor {i}": 10, "shared": 5} for i in range(8)}
    found = around(schedule, (2, 6), lambda i: tensors[i], 25)
    assert found == (((0, 1), schedule[2]), ((4, 5), schedule[6]))
    found = around(schedule, (1, 2), lambda i: tensors[i], 35)
    assert found == (((6, 7, 0), schedule[1]), ((), schedule[2]))
    wide = (Stage(((0, 1), (2,))), Stage(((3,),)))
    assert around(wide, (1,), lambda i: tensors[i], 1000) == (((0, 1, 2), wide[1]),)
