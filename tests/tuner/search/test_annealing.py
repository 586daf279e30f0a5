"""Simulated annealing: where its chains stand."""

from __future__ import annotations

import random

from templates.space import Knob, SearchSpace, Space
from tests.tuner.search.landscape import rugged, trial_of
from tuner.search.annealing import AnnealingOptions, AnnealingSearcher
from tuning_db.record import Config

SPACE = Space("box", tuple(Knob(name, tuple(range(40))) for name in "abcd"))


def seconds(config: Config) -> float:
    return sum(config.knobs.values()) + rugged(config, 0.5)


def knobs_between(one: Config, other: Config) -> int:
    return sum(one[name] != other[name] for name in one.knobs)


def test_a_cold_chain_steps_to_faster_configs_alone() -> None:
    """What it proposes is therefore a step away from the best that is known, which comes down."""
    rng, history = random.Random(0), []
    for _ in range(8):
        config = SPACE.sample(rng)
        assert config is not None
        history.append(trial_of(config, seconds(config)))
    options = AnnealingOptions(chains=1, hot=1e-9, cold=1e-9)
    searcher = AnnealingSearcher(SearchSpace((SPACE,)), 0, history, options)
    best = first = min((t.config for t in history), key=seconds)
    for _ in range(100):
        (config,) = searcher.propose(1)
        assert knobs_between(config, best) in (1, 2)
        searcher.observe([trial_of(config, seconds(config))])
        best = min(best, config, key=seconds)
    assert seconds(best) < seconds(first) / 2
