"""The contract of every searcher on every recorded space: real knobs, real failures, real ruggedness."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.tuner.search.test_searchers import every_searcher
from tuner.measure.replay.recorded import SUFFIX, RecordedSpace, read
from tuner.measure.replay.runner import trial_of
from tuner.measure.runner import Candidate
from tuner.search import make_searcher
from tuning_db.record import Config, Failure, FailureKind, Trial

pytestmark = pytest.mark.sampled(8)
SPACES = sorted((Path(__file__).parents[3] / "benchmarks/spaces").glob(f"*{SUFFIX}"))
BATCHES = (16, 1, 7, 16, 24)
every_space = pytest.mark.parametrize("path", SPACES, ids=lambda path: path.name.removesuffix(SUFFIX))

Answer = Callable[[Sequence[Config]], list[Trial]]


@cache
def recorded(path: Path) -> RecordedSpace:
    return read(path)


def failing(space: RecordedSpace, configs: Sequence[Config]) -> list[Trial]:
    why = Failure(FailureKind.RUN_TIMEOUT, "the board does not answer")
    return [trial_of(Candidate(space.workload, c), space.device, 1, why) for c in configs]


def searched(space: RecordedSpace, name: str, seed: int, answer: Answer, sizes: Sequence[int] = BATCHES) -> list[str]:
    """Keys of what was proposed; every batch is checked against the contract."""
    searcher, found = make_searcher(name, space.space, seed), []
    for n in sizes:
        batch = searcher.propose(n)
        assert len(batch) == n
        assert all(c.key in space.records for c in batch)
        found += [c.key for c in batch]
        searcher.observe(answer(batch))
    assert len(set(found)) == len(found)
    return found


def test_there_are_recorded_spaces() -> None:
    assert SPACES


@every_space
@every_searcher
def test_new_valid_within_the_budget_and_the_same_for_a_seed(name: str, path: Path) -> None:
    space = recorded(path)

    def measured(configs: Sequence[Config]) -> list[Trial]:
        return [space.trial(c) for c in configs]

    assert searched(space, name, 5, measured) == searched(space, name, 5, measured)


@every_space
@every_searcher
def test_observed_in_any_order_and_late(name: str, path: Path) -> None:
    space, order = recorded(path), random.Random(7)
    waiting: list[Trial] = []

    def late(configs: Sequence[Config]) -> list[Trial]:
        waiting.extend(space.trial(c) for c in configs)
        order.shuffle(waiting)
        known = waiting[5:]
        del waiting[5:]
        return known

    searched(space, name, 6, late)


@every_space
@every_searcher
def test_where_everything_fails(name: str, path: Path) -> None:
    space = recorded(path)
    searched(space, name, 7, lambda configs: failing(space, configs))


@every_space
@every_searcher
def test_a_space_that_is_nearly_known(name: str, path: Path) -> None:
    """What is left is found, all of it, and then nothing."""
    space = recorded(path)
    *known, a, b, c = space.configs
    searcher = make_searcher(name, space.space, 8, [space.trial(config) for config in known])
    assert {config.key for config in searcher.propose(16)} == {a.key, b.key, c.key}
    assert searcher.propose(16) == []
