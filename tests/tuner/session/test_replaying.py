"""Replays on the recorded spaces that are shipped."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tuner.measure.replay.recorded import RecordedSpace, read
from tuner.session.final import FINALISTS
from tuner.session.replaying import replay

SPACE = Path(__file__).parents[3] / "benchmarks" / "spaces" / "wpk_conv3.cpu1.znver5.jsonl.xz"


@pytest.fixture(scope="module")
def space() -> RecordedSpace:
    return read(SPACE)


@pytest.mark.parametrize("searcher", ["random", "auto"])
def test_delivers_the_best_of_those_measured_fastest(space: RecordedSpace, searcher: str) -> None:
    run = replay(space, searcher, seed=3, trials=40)
    for count in range(1, 41):
        fastest = sorted((t for t in run.trials[:count] if t.ok), key=lambda t: t.seconds)[:FINALISTS]
        expected = min((space.medians[t.config.key] for t in fastest), default=math.inf)
        assert run.delivered[count - 1] == expected


def test_a_lucky_measurement_hides_no_better_config(space: RecordedSpace) -> None:
    """The whole space: with the noise of measurements, the best config is among those that would be compared."""
    run = replay(space, "random", seed=0, trials=len(space.configs))
    assert run.trials_to(0.95) < len(space.configs)
    assert math.isinf(run.trials_to(1.01))
