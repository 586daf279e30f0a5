"""Planned networks in the simulator: on one device they take the plan's sum, on two they overlap."""

from __future__ import annotations

import math
import random

import pytest

from templates.template import PLAIN, Layout
from tuner.graph.layout.plan import Form, Moving, Node, State, plan, seconds_of
from tuner.studies.exhaustive import fastest
from tuner.studies.measured_network import Machine, Simulated, measured_network
from tuner.studies.simulator import Simulator
from tuner.studies.soap import random_config

BLOCKED = Layout(8)
LATENCY, RATE = 2e-6, 1e-9  # of a copy
SIZES = (400, 4000, 4000, 4000, 4000, 4000)


def states(reads: int, *seconds: float) -> tuple[State, ...]:
    """For each device; a device whose seconds are infinite cannot."""
    return tuple(State((Form(d, PLAIN),) * reads, Form(d, PLAIN), s) for d, s in enumerate(seconds))


def fork() -> tuple[Node, ...]:
    """An input, a step, two branches that are equally fast on both devices, what joins them, and the result."""
    return (
        Node("input", (), states(0, 0.0, 0.0)),
        Node("stem", (0,), states(1, 50e-6, 90e-6)),
        Node("branch", (1,), states(1, 300e-6, 290e-6)),
        Node("branch", (1,), states(1, 300e-6, 310e-6)),
        Node("join", (2, 3), states(2, 20e-6, math.inf)),
        Node("result", (4,), states(1, 0.0, 0.0)),
    )


def moving() -> Moving:
    return Moving(lambda node, *_: LATENCY + RATE * SIZES[node], lambda *_: 7e-6)


def simulated(
    nodes: tuple[Node, ...], chosen: tuple[int, ...], cores: tuple[str, ...] = ()
) -> tuple[Simulated, Simulator]:
    links = [(0, 1, LATENCY, RATE), (1, 0, LATENCY, RATE)]
    found = measured_network(
        "fork",
        nodes,
        moving(),
        states=chosen,
        sizes=SIZES[: len(nodes)],
        machine=Machine(["gpu", "cpu"], links, cores),
    )
    return found, Simulator(found.network, found.topology, found.cost)


def test_on_one_device_it_takes_the_sum() -> None:
    nodes = fork()
    found, simulator = simulated(nodes, (0,) * 6)
    assert [o.name for o in found.network.operators] == ["0 stem", "1 branch", "2 branch", "3 join", "4 result"]
    assert simulator.start(found.strategy) == pytest.approx(670e-6, abs=1e-11)


def test_the_simulator_sees_what_the_sum_cannot() -> None:
    """The plan with the least sum leaves a branch to wait for the other; both at once take less."""
    nodes = fork()
    best = plan(nodes, moving())
    found, simulator = simulated(nodes, best.states)
    assert simulator.start(found.strategy) == pytest.approx(best.seconds, abs=1e-11)
    proof = fastest(simulator, found.strategy)
    assert proof.complete
    # The stem, a copy, the branch on the other device, a copy back, the join.
    assert proof.seconds == pytest.approx((50 + 6 + 290 + 6 + 20) * 1e-6, abs=1e-11)
    assert proof.seconds < 0.6 * best.seconds


def test_what_a_device_lacks_is_never_there() -> None:
    found, simulator = simulated(fork(), (0,) * 6)
    join = found.network.operators[3]
    assert found.topology.able(join.kind) == (0,)
    rng = random.Random(0)
    assert {random_config(join, found.topology, rng).devices for _ in range(20)} == {(0,)}
    assert simulator.network is found.network


def test_transforms_of_layouts_are_part_of_what_reads() -> None:
    blocked = State((Form(0, BLOCKED),), Form(0, BLOCKED), 100e-6)
    nodes = (
        Node("input", (), states(0, 0.0)),
        Node("conv", (0,), (blocked,)),
        Node("result", (1,), (State((Form(0, PLAIN),), Form(0, PLAIN), 0.0),)),
    )
    best = plan(nodes, moving())
    found, simulator = simulated(nodes, best.states)
    assert simulator.start(found.strategy) == pytest.approx(best.seconds, abs=1e-11) == pytest.approx(114e-6, abs=1e-11)


def test_what_a_concatenation_saves_is_taken_off() -> None:
    filling = State((Form(0, BLOCKED),), Form(0, BLOCKED), 100e-6, fills=True)
    joining = State((Form(0, BLOCKED),) * 2, Form(0, BLOCKED), 30e-6, saves=(10e-6, 15e-6))
    nodes = (
        Node("input", (), (State((), Form(0, BLOCKED), 0.0),)),
        Node("one", (0,), (filling,)),
        Node("other", (0,), (filling,)),
        Node("join", (1, 2), (joining,)),
    )
    best = plan(nodes, moving())
    found, simulator = simulated(nodes, best.states)
    assert simulator.start(found.strategy) == pytest.approx(best.seconds, abs=1e-11) == pytest.approx(205e-6, abs=1e-11)


def test_on_shared_cores_it_takes_the_sum_of_both_devices() -> None:
    """With the copies, which the cores make: a branch at the other device gains nothing but what it takes less."""
    nodes = fork()
    chosen = (0, 0, 0, 1, 0, 0)
    found, simulator = simulated(nodes, chosen, ("cores", "cores"))
    assert found.topology.lanes == ("cores",)
    expected = (50 + 300 + 310 + 20 + 2 * 6) * 1e-6
    assert simulator.start(found.strategy) == pytest.approx(expected, abs=1e-11)
    apart, overlapping = simulated(nodes, chosen)
    assert overlapping.start(apart.strategy) < 0.7 * expected


def test_what_several_read_elsewhere_is_copied_once() -> None:
    nodes = fork()
    chosen = (0, 0, 1, 1, 0, 0)
    found, simulator = simulated(nodes, chosen, ("cores", "cores"))
    assert [o.name for o in found.network.operators][:2] == ["0 stem", "0 stem on 1"]
    expected = (50 + 290 + 310 + 20 + 3 * 6) * 1e-6
    assert seconds_of(nodes, moving(), chosen) == pytest.approx(expected)
    assert simulator.start(found.strategy) == pytest.approx(expected, abs=1e-11)


def test_no_search_needs_the_copy_that_several_share() -> None:
    """From a plan that has it: the same fastest strategy as from one that has not."""
    nodes = fork()
    least = [fastest(s, f.strategy).seconds for f, s in (simulated(nodes, c) for c in ((0,) * 6, (0, 0, 1, 1, 0, 0)))]
    assert least[1] == pytest.approx(least[0], abs=1e-11)


def test_a_transform_for_several_is_made_once() -> None:
    blocked = State((Form(0, BLOCKED),), Form(0, PLAIN), 100e-6)
    nodes = (
        Node("input", (), states(0, 0.0)),
        Node("stem", (0,), states(1, 50e-6)),
        Node("one", (1,), (blocked,)),
        Node("other", (1,), (blocked,)),
    )
    best = plan(nodes, moving())
    found, simulator = simulated(nodes, best.states)
    assert simulator.start(found.strategy) == pytest.approx(best.seconds, abs=1e-11) == pytest.approx(257e-6, abs=1e-11)
