"""Devices that draw on one memory: what they take together, against what can be said with a pencil."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.studies.networks import Network, NetworkOperator, network
from tuner.studies.parts import configs_in_parts
from tuner.studies.simulator import Roofline, Simulator
from tuner.studies.simulator.contention import contended, contended_timeline
from tuner.studies.soap import PartConfig, Strategy, random_strategy
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology, topology_of

COST = Roofline(1, 1)
RATE = 1e9  # bytes per second


def topology(*memories: str) -> Topology:
    """A device on each memory, which has 1 Gflop/s; copies take nothing worth speaking of."""
    names = [f"d{i}" for i in range(len(memories))]
    devices = tuple(DeviceSpec(n, n, 1e9, RATE, m) for n, m in zip(names, memories, strict=True))
    links = tuple(Link(a, b, float("inf")) for a in names for b in names if a != b)
    return Topology("pencil", devices, tuple(Memory(m) for m in dict.fromkeys(memories)), links)


def alone(*works: tuple[float, float]) -> Network:
    """Operators that read nothing of each other, with so many flop and bytes (their output is 4 of them)."""
    operators = tuple(NetworkOperator(f"o{i}", "o", (1,), "-", flop=f, extra=b - 4) for i, (f, b) in enumerate(works))
    return Network("alone", operators)


def on(*devices: int) -> Strategy:
    return tuple(PartConfig((1,), (d,)) for d in devices)


def test_two_that_want_the_whole_memory_take_as_long_as_one_after_the_other() -> None:
    net = alone((0, 1e9), (0, 1e9))
    assert contended(net, topology("ram", "ram"), on(0, 1), cost=COST, reached=1.0) == pytest.approx(2)
    assert contended(net, topology("ram", "ram"), on(0, 0), cost=COST, reached=1.0) == pytest.approx(2)
    assert contended(net, topology("ram", "vram"), on(0, 1), cost=COST, reached=1.0) == pytest.approx(1)
    assert Simulator(net, topology("ram", "ram"), COST).start(on(0, 1)) == pytest.approx(1)


def test_who_asks_for_less_than_its_share_is_not_slowed_down() -> None:
    """The first computes 2 s and asks for a quarter of the rate, the second gets three quarters: 4/3 s. Then two more
    seconds of it: two thirds at that speed take until the first has ended, at full speed the rest."""
    net = alone((2e9, 0.5e9), (0, 1e9))
    assert contended(net, topology("ram", "ram"), on(0, 1), cost=COST, reached=1.0) == pytest.approx(2)
    longer = alone((2e9, 0.5e9), (0, 3e9))
    assert contended(longer, topology("ram", "ram"), on(0, 1), cost=COST, reached=1.0) == pytest.approx(2 + 1.5)


def test_three_share_what_is_there() -> None:
    """A fifth of the rate is asked for by one, two share the rest: 0.4 for each."""
    net = alone((5e9, 1e9), (0, 1e9), (0, 1e9))
    assert contended(net, topology("ram", "ram", "ram"), on(0, 1, 2), cost=COST, reached=1.0) == pytest.approx(5)
    swift = alone((1e9, 0.2e9), (0, 1e9), (0, 1e9))
    assert contended(swift, topology("ram", "ram", "ram"), on(0, 1, 2), cost=COST, reached=1.0) == pytest.approx(
        1 + 1.2
    )


@pytest.mark.parametrize("name", ["alexnet", "inception_v3"])
def test_it_is_the_simulators_timeline_where_there_is_enough(name: str) -> None:
    net, aisage = network(name, batch=1), topology_of("aisage")
    rng, simulator = random.Random(0), Simulator(net, aisage)
    for _ in range(3):
        strategy = random_strategy(net, aisage, rng, configs_in_parts)
        assert contended(net, aisage, strategy, cost=Roofline(), reached=1e6) == pytest.approx(
            simulator.start(strategy), rel=1e-9
        )


def test_a_timeline_has_what_a_pencil_says() -> None:
    """The second is as slow as the memory lets it be while the first draws on it, and goes on at full speed."""
    longer = alone((2e9, 0.5e9), (0, 3e9))
    timeline = contended_timeline(longer, topology("ram", "ram"), on(0, 1), cost=COST, reached=1.0)
    assert [(s.name, s.lane, s.start * timeline.tick) for s in timeline.spans] == [
        ("o0[0]", "d0", 0),
        ("o1[0]", "d1", 0),
    ]
    assert [s.end * timeline.tick for s in timeline.spans] == pytest.approx([2, 3.5])


def test_its_timeline_is_the_simulators_where_there_is_enough() -> None:
    net, aisage = network("inception_v3", batch=1), topology_of("aisage")
    strategy = random_strategy(net, aisage, random.Random(1), configs_in_parts)
    simulator = Simulator(net, aisage)
    simulator.start(strategy)
    one, other = simulator.timeline(), contended_timeline(net, aisage, strategy, cost=Roofline(), reached=1e6)
    assert [s[:3] for s in other.spans] == [s[:3] for s in one.spans]
    assert [s[3:] for s in other.spans] == [pytest.approx(s[3:], abs=1000) for s in one.spans]  # ticks


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(10, 1e9)), min_size=1, max_size=6), st.randoms())
def test_it_is_never_faster_than_each_with_all_of_it_nor_slower_than_all_in_a_row(
    works: list[tuple[float, float]], rng: random.Random
) -> None:
    net, both = alone(*works), topology("ram", "ram")
    strategy = on(*(rng.randrange(2) for _ in works))
    found = contended(net, both, strategy, cost=COST, reached=1.0)
    assert found >= Simulator(net, both, COST).start(strategy) * (1 - 1e-9)
    assert found <= contended(net, both, on(*[0] * len(works)), cost=COST, reached=1.0) * (1 + 1e-9)
