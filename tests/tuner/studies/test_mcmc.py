"""Markov chains and local search on simulated strategies."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from tests.tuner.studies.simulator.test_simulator import chain, two
from tuner.errors import BadInput
from tuner.studies.baselines import strategy_of
from tuner.studies.descent import descend, is_local_optimum, layer_moves
from tuner.studies.exhaustive import fastest
from tuner.studies.mcmc import ChainResult, Options, search
from tuner.studies.networks import network
from tuner.studies.simulator import Simulator
from tuner.studies.soap import Strategy, configs_of, random_strategy
from tuner.studies.topology import topology_of

RNNLM, P100 = network("rnnlm", steps=3, hidden=512), topology_of("p100:4")


def simulator() -> Simulator:
    return Simulator(RNNLM, P100, training=True)


def starts() -> dict[str, Strategy]:
    return {name: strategy_of(name, RNNLM, P100) for name in ("data_parallel", "expert")}


def test_chains_find_what_no_start_has_and_no_neighbour_betters() -> None:
    found = search(simulator(), starts(), random.Random(0), options=Options(proposals=600))
    once_more = simulator()
    assert all(found.seconds < once_more.start(strategy) for strategy in starts().values())
    assert once_more.start(found.strategy) == found.seconds
    assert found.optimal
    assert is_local_optimum(once_more)
    assert [seconds for _, seconds in found.history] == sorted((s for _, s in found.history), reverse=True)
    assert found.seconds <= min(found.reached.values())


def test_a_chain_from_a_random_strategy_finds_faster_ones() -> None:
    drawn = random_strategy(RNNLM, P100, random.Random(0))
    options = Options(proposals=600, descents=0)
    found = search(simulator(), {"random": drawn}, random.Random(0), options=options)
    assert found.start == "random"
    assert found.seconds < 0.9 * simulator().start(drawn)


@pytest.mark.parametrize("tempering", [1, 3])
def test_the_same_seed_finds_the_same(tempering: int) -> None:
    options = Options(proposals=300, tempering=tempering, exchange=10, descents=0)
    one, other = (search(simulator(), starts(), random.Random(3), options=options) for _ in range(2))
    assert (one.strategy, one.seconds, one.accepted) == (other.strategy, other.seconds, other.accepted)
    different = search(simulator(), starts(), random.Random(4), options=options)
    assert different.accepted != one.accepted


def test_of_several_descents_the_best_is_kept_and_a_local_optimum() -> None:
    nmt = network("nmt", steps=2)
    start = {"expert": strategy_of("expert", nmt, P100)}
    found = [
        search(Simulator(nmt, P100, training=True), start, random.Random(4), options=Options(proposals=20, descents=n))
        for n in (1, 3, 6)
    ]
    assert found[0].seconds > found[1].seconds > found[2].seconds
    again = Simulator(nmt, P100, training=True)
    for one in found:
        assert again.start(one.strategy) == one.seconds
        assert one.optimal
        assert is_local_optimum(again)


def test_no_descent_is_begun_that_would_not_end_in_time() -> None:
    """The clock is the test's: it counts how often it is asked."""

    def found(seconds: float, descents: int) -> ChainResult:
        ticks: Iterator[int] = iter(range(10**9))
        options = Options(seconds=seconds, patience=1, descents=descents)
        return search(simulator(), starts(), random.Random(0), options=options, clock=lambda: float(next(ticks)))

    assert found(4, 1).optimal
    assert found(4, 3).elapsed == found(4, 1).elapsed + 1  # asked once more
    assert found(20, 3).elapsed > found(20, 1).elapsed + 1


def test_threads_find_what_one_finds() -> None:
    one, two, three = (
        search(simulator(), starts(), random.Random(3), options=Options(proposals=300, threads=threads))
        for threads in (1, 2, 3)
    )
    for found in (two, three):
        assert (found.strategy, found.seconds, found.start) == (one.strategy, one.seconds, one.start)
        assert (found.reached, found.proposals, found.accepted) == (one.reached, one.proposals, one.accepted)
        assert found.optimal


def test_a_warm_chain_accepts_what_is_slower_and_a_cold_one_does_not() -> None:
    accepted = {}
    for temperature in (1e-9, 1.0):
        options = Options(proposals=300, temperature=temperature, descents=0, patience=300)
        accepted[temperature] = search(simulator(), starts(), random.Random(1), options=options).accepted
    assert accepted[1.0] > 2 * accepted[1e-9]


def test_a_chain_ends_when_its_best_is_half_of_the_budget_old() -> None:
    """Nothing is faster than one device here: the chain gives up."""
    options = Options(proposals=2000, temperature=1e-9, together=0, patience=1, descents=0)
    found = search(Simulator(chain(), two(bandwidth=1.0)), {"one": strategy_of("single", chain(), two())},
                   random.Random(0), options=options)  # fmt: skip
    assert found.proposals < 2000


def test_a_budget_of_time_is_kept_to() -> None:
    """The clock is the test's: it counts how often it is asked."""
    ticks: Iterator[int] = iter(range(10**9))
    options = Options(seconds=500, patience=1)
    found = search(simulator(), starts(), random.Random(0), options=options, clock=lambda: float(next(ticks)))
    assert 100 < found.proposals < 1100
    assert found.elapsed < 5000


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_tells_of_each_new_best_and_may_end_the_search(threads: int) -> None:
    told: list[float] = []

    def progress(found: ChainResult) -> None:
        told.append(found.seconds)
        if len(told) >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(
            simulator(),
            starts(),
            random.Random(0),
            options=Options(proposals=10**9, threads=threads),
            progress=progress,
        )
    assert told == sorted(told, reverse=True)


def test_a_start_that_does_not_fit_is_left_for_one_that_does() -> None:
    net = chain()
    tight = two(memory=net.weights)
    start = {"one": strategy_of("single", net, tight)}
    found = search(
        Simulator(net, tight),
        start,
        random.Random(0),
        options=Options(proposals=200),
    )
    check = Simulator(net, tight)
    assert check.start(found.strategy) == found.seconds
    assert check.excess == 0


def test_where_nothing_fits_that_is_said() -> None:
    net = chain()
    tight = two(memory=700.0, count=3)  # together enough, but not for the parts that there are
    with pytest.raises(BadInput, match="chain: no strategy that was tried fits into the memories of two"):
        search(
            Simulator(net, tight),
            {"one": strategy_of("single", net, tight)},
            random.Random(0),
            options=Options(proposals=100),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs an end"),
        ({"proposals": 0}, "proposals must be above 0"),
        ({"seconds": 1, "tempering": 0}, "tempering"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Options(**options)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a strategy to start from"):
        search(simulator(), {}, random.Random(0), options=Options(proposals=1))


def test_descent_ends_where_nothing_is_better() -> None:
    rng = random.Random(5)
    here, there = simulator(), simulator()
    before = here.start(random_strategy(RNNLM, P100, rng))
    there.start(here.strategy)
    assert not is_local_optimum(here)
    assert not descend([here], rng, lambda: False)
    assert here.seconds == before
    assert descend([here, there], rng)
    assert here.seconds < before
    assert there.strategy == here.strategy
    assert is_local_optimum(here)
    assert {len(move) for move in layer_moves(here)} == {3}


@pytest.mark.parametrize(("name", "devices"), [("lenet", 2), ("rnnlm", 2)])
def test_chains_find_the_global_optimum_of_small_spaces(name: str, devices: int) -> None:
    """The whole spaces of 4 devices are the benchmark's."""
    net = network(name, **({"steps": 2} if name == "rnnlm" else {}))
    topology = topology_of(f"p100:{devices}")
    given = {s: strategy_of(s, net, topology) for s in ("data_parallel", "expert")}
    options = Options(proposals=12000, temperature=0.005, tempering=4)
    found = search(Simulator(net, topology, training=True), given, random.Random(0), options=options)
    proof = fastest(Simulator(net, topology, training=True), given["data_parallel"])
    assert proof.complete
    assert proof.seconds == found.seconds
    assert proof.leaves < proof.space / 10


def test_the_least_of_all_is_found_where_all_can_be_tried() -> None:
    net, topology = network("rnnlm", steps=1, layers=1, hidden=256), topology_of("p100:2")
    here = Simulator(net, topology, training=True)
    least = min(here.start(s) for s in itertools.product(*(configs_of(o, topology) for o in net.operators)))
    proof = fastest(here, strategy_of("single", net, topology))
    assert proof.seconds == least
    assert proof.leaves < math.prod(len(configs_of(o, topology)) for o in net.operators)


def test_an_exhaustive_search_can_be_ended() -> None:
    net, topology = network("lenet"), topology_of("p100:4")
    proof = fastest(
        Simulator(net, topology, training=True), strategy_of("single", net, topology), lambda p: p.nodes < 1000
    )
    assert not proof.complete
    assert proof.nodes == 1000
