"""The contract that every searcher passes, on small and realistic spaces."""

from __future__ import annotations

import importlib.util
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from templates.space import Constraint, Knob, SearchSpace, Space
from tests.tuner.search.landscape import landscape, tiny_space, trial_of
from tuner.search import DEFAULT, Experience, make_searcher
from tuner.search import searcher_names as all_names
from tuning_db.record import Config, Trial

TINY = 18 + 4
# Those whose order nobody influences.
FIXED = ("random", "grid", "autotvm_ga", "autotvm_xgb")  # they take no advice


def searcher_names() -> list[str]:
    """Those that can be made here: one needs an extra."""
    return [n for n in all_names() if n != "reinforcement" or importlib.util.find_spec("stable_baselines3")]


every_searcher = pytest.mark.parametrize("name", searcher_names())
# Properties try many searches: of the one that trains a network, which takes minutes, at night alone.
every_searcher_often = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.night) if n == "reinforcement" else n for n in searcher_names()]
)
unhurried = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def seconds_of(config: Config, modulus: int) -> float:
    """A repeatable latency; every `modulus`-th config fails."""
    number = sum(config.key.encode())
    return math.inf if number % modulus == 0 else 1e-6 * (1 + number % 97)


def search_all(name: str, space: SearchSpace, seed: int, sizes: list[int], modulus: int = 5) -> list[list[Config]]:
    """Propose, measure and observe, with batches of those sizes, until a proposal is empty; returns the batches."""
    searcher = make_searcher(name, space, seed)
    batches: list[list[Config]] = []
    while True:
        batch = searcher.propose(sizes[len(batches) % len(sizes)])
        if not batch:
            return batches
        batches.append(batch)
        searcher.observe([trial_of(c, seconds_of(c, modulus)) for c in batch])


def keys(batches: list[list[Config]]) -> list[str]:
    return [c.key for batch in batches for c in batch]


def test_the_registry_knows_its_searchers() -> None:
    assert DEFAULT in searcher_names()
    assert "random" in searcher_names()


@pytest.mark.sampled(3)
@every_searcher_often
@unhurried
@given(seed=st.integers(0, 2**63), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), modulus=st.integers(1, 6))
def test_a_small_space_is_exhausted_exactly_once(name: str, seed: int, sizes: list[int], modulus: int) -> None:
    space = tiny_space()
    found = keys(search_all(name, space, seed, sizes, modulus))
    assert len(found) == len(set(found)) == TINY
    assert set(found) == {c.key for c in space}


@pytest.mark.sampled(3)
@every_searcher_often
@unhurried
@given(seed=st.integers(0, 2**63), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_same_seed_and_same_observations_give_the_same_proposals(name: str, seed: int, sizes: list[int]) -> None:
    assert keys(search_all(name, tiny_space(), seed, sizes)) == keys(search_all(name, tiny_space(), seed, sizes))


@every_searcher
def test_a_realistic_search_repeats_itself_exactly_and_depends_on_its_seed(name: str) -> None:
    scape = landscape(winograd_base=90e-6)

    def run(seed: int) -> list[str]:
        searcher, found = make_searcher(name, scape.space, seed), []
        for _ in range(5):
            batch = searcher.propose(16)
            searcher.observe(scape.trials(batch))
            found += [c.key for c in batch]
        return found

    assert run(3) == run(3)
    assert name == "grid" or run(3) != run(4)


@every_searcher
def test_proposals_are_valid_new_and_as_many_as_asked(name: str) -> None:
    scape = landscape(winograd_base=90e-6)
    searcher = make_searcher(name, scape.space, 11)
    found: list[Config] = []
    for n in (16, 1, 7, 16, 32, 16):
        batch = searcher.propose(n)
        assert len(batch) == n
        assert all(scape.space.is_valid(c) for c in batch)
        found += batch
        searcher.observe(scape.trials(batch))
    assert len({c.key for c in found}) == len(found)


@every_searcher
def test_proposing_twice_without_an_observation_repeats_nothing(name: str) -> None:
    searcher = make_searcher(name, tiny_space(), 5)
    found = [c.key for _ in range(8) for c in searcher.propose(4)]
    assert len(found) == len(set(found)) == TINY
    assert searcher.propose(4) == []


@every_searcher
def test_history_and_foreign_observations_are_never_proposed(name: str) -> None:
    space = tiny_space()
    configs = list(space)
    searcher = make_searcher(name, space, 2, [trial_of(c, seconds_of(c, 7)) for c in configs[:9]])
    searcher.observe([trial_of(c, 1e-5) for c in configs[9:13]])
    assert {c.key for c in searcher.propose(100)} == {c.key for c in configs[13:]}


@every_searcher
def test_a_finished_space_gives_nothing(name: str) -> None:
    space = tiny_space()
    assert make_searcher(name, space, 2, [trial_of(c, 1e-5) for c in space]).propose(8) == []


@every_searcher
def test_history_of_an_older_space_is_tolerated(name: str) -> None:
    old = [
        trial_of(Config("a", {"x": 99, "y": "p", "gone": 1}), 1e-7),
        trial_of(Config("removed", {"w": 1}), 1e-7),
        *(trial_of(Config("removed", {"w": 2 + i}), math.inf) for i in range(30)),
    ]
    searcher = make_searcher(name, tiny_space(), 0, old)
    assert len({c.key for c in searcher.propose(100)}) == TINY


@every_searcher
def test_all_failed_observations_are_survived(name: str) -> None:
    scape = landscape(winograd_base=90e-6)
    searcher = make_searcher(name, scape.space, 0)
    found: list[Config] = []
    for _ in range(8):
        batch = searcher.propose(16)
        assert len(batch) == 16
        found += batch
        searcher.observe([trial_of(c, math.inf) for c in batch])
    assert len({c.key for c in found}) == 128
    assert {c.template for c in found} == {"direct", "winograd"}


@every_searcher
def test_a_space_whose_valid_configs_are_rare_is_found_by_listing(name: str) -> None:
    knobs = tuple(Knob(f"k{i}", tuple(range(8))) for i in range(4))
    diagonal = Constraint("all equal", lambda v: len({v[k.name] for k in knobs}) == 1)
    space = SearchSpace((Space("rare", knobs, (diagonal,)),))
    assert {c["k0"] for c in make_searcher(name, space, 0).propose(20)} == set(range(8))


@every_searcher
def test_a_session_that_goes_on_does_not_draw_the_same_again(name: str) -> None:
    """With the seed of the first session the second one must not list the whole space to find something new."""
    scape = landscape(winograd_base=90e-6)
    first = make_searcher(name, scape.space, 9)
    history: list[Trial] = []
    for _ in range(4):
        trials = scape.trials(first.propose(16))
        first.observe(trials)
        history += trials
    known = {t.config.key for t in history}
    batch = make_searcher(name, scape.space, 9, history).propose(16)
    assert len(batch) == 16
    assert not known & {c.key for c in batch}


def test_random_search_is_uniform_over_templates_and_then_over_configs() -> None:
    small, large = landscape(winograd_base=90e-6).space.spaces[1], tiny_space().spaces[1]
    space = SearchSpace((small, Space("many", (Knob("i", tuple(range(2000))),)), large))
    counts = {"winograd": 0, "many": 0}
    low = 0
    for config in make_searcher("random", space, 1).propose(1004):
        if config.template in counts:
            counts[config.template] += 1
        low += config.template == "many" and config["i"] < 1000
    assert sum(counts.values()) == 1000
    assert 440 < counts["many"] < 560  # 1000 draws of a fair coin: four standard deviations are 63
    assert abs(low - counts["many"] / 2) < 60


@every_searcher
def test_suggestions_are_taken_once_or_ignored(name: str) -> None:
    space = tiny_space()
    wanted = list(space)[-2:]
    searcher = make_searcher(name, space, 0)
    searcher.suggest([Config("nowhere", {"a": 1}), *wanted, *wanted])
    batch = searcher.propose(4)
    assert len(batch) == len(set(batch)) == 4
    assert all(space.is_valid(c) for c in batch)
    if name not in FIXED:
        assert set(wanted) <= set(batch)
        assert batch[0] == space.seed_configs()[0]


@every_searcher
def test_spaces_of_one_config_and_of_none(name: str) -> None:
    point = Space("point", (Knob("x", (7,)),), (), ({"x": 7},))
    searcher = make_searcher(name, SearchSpace((point,)), 0)
    (config,) = searcher.propose(16)
    searcher.observe([trial_of(config, 1e-6)])
    assert searcher.propose(16) == []
    nothing = Space("nothing", (Knob("x", (1, 2)), Knob("y", (1, 2))), (Constraint("never", lambda _: False),))
    assert make_searcher(name, SearchSpace((nothing,)), 0).propose(16) == []


@every_searcher
def test_what_others_know_of_a_space_without_configs_changes_nothing(name: str) -> None:
    scape = landscape(winograd_base=90e-6)
    known = Experience(scape.space, scape.trials(make_searcher("random", scape.space, 0).propose(16)))
    nothing = Space("nothing", (Knob("x", (1, 2)),), (Constraint("never", lambda _: False),))
    searcher = make_searcher(name, SearchSpace((nothing,)), 0)
    searcher.learn_from([known])
    assert searcher.propose(16) == []


def test_random_search_stays_random_where_valid_configs_are_rare() -> None:
    """A hundredth is valid: some draws of a sample meet none, and what they could not find is not all in one corner."""
    knobs = tuple(Knob(f"k{i}", tuple(range(60))) for i in range(3))
    rare = Constraint("a hundredth", lambda v: (v["k0"] * 7 + v["k1"] * 13 + v["k2"] * 29) % 100 == 0)
    found = make_searcher("random", SearchSpace((Space("rare", knobs, (rare,)),)), 3).propose(120)
    assert len({c.key for c in found}) == 120
    for knob in knobs:
        assert 22 < sum(c[knob.name] for c in found) / 120 < 37


@pytest.mark.sampled(3)
@every_searcher_often
@unhurried
@given(order=st.randoms(use_true_random=False), late=st.integers(0, 5))
def test_observations_may_come_late_and_in_any_order(name: str, order: random.Random, late: int) -> None:
    """Some trials are only known several batches later, as from a slow board."""
    space = tiny_space()
    searcher = make_searcher(name, space, 1)
    found: list[Config] = []
    waiting: list[Trial] = []
    while batch := searcher.propose(3):
        found += batch
        waiting += [trial_of(c, seconds_of(c, 5)) for c in batch]
        order.shuffle(waiting)
        searcher.observe(waiting[late:])
        del waiting[late:]
    assert len({c.key for c in found}) == len(found) == TINY
