"""The places of what exceeds a threshold, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.template import template_named
from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.compact import Compact, CompactOperator
from vision_ops.selected import INVALID

__all__ = ["place"]


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 5), length=st.integers(1, 600), threshold=st.floats(-2, 2, width=32), seed=st.integers(0, 99)
)
def test_any_rows_with_any_config(rows: int, length: int, threshold: float, seed: int) -> None:
    host, workload = Place.named("host"), Compact(rows, length, threshold).workload()
    inputs = CompactOperator().random_inputs(workload, np.random.default_rng(seed))
    config = configs_of(workload, host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(workload, config, host).error(*inputs) == 0


def test_all_none_and_what_is_no_number(place: Place) -> None:
    workload = Compact(4, 77, 0.5).workload()
    scores = np.zeros((4, 77), np.float32)
    scores[1], scores[2], scores[3, ::2] = 1.0, np.nan, np.inf
    for config in configs_of(workload, place.target):
        indices, count = Compiled.of(workload, config, place)(scores)
        assert count.tolist() == [0, 77, 0, 39]
        assert (indices[[0, 2]] == INVALID).all()
        assert indices[1].tolist() == list(range(77))
        assert indices[3].tolist() == [*range(0, 77, 2), *[INVALID] * 38]


def test_what_is_on_the_threshold_is_not_above_it(place: Place) -> None:
    workload = Compact(1, 9, 0.1).workload()
    scores = np.array([[0.1, np.nextafter(np.float32(0.1), np.float32(1)), 0.0] * 3], np.float32)
    config = configs_of(workload, place.target)[0]
    assert Compiled.of(workload, config, place)(scores)[1].tolist() == [3]


def test_negative_extents_are_refused_and_nothing_is_done_where_nothing_is() -> None:
    with pytest.raises(ValueError, match="compact: "):
        Compact(-1, 4, 0.0)
    for empty in (Compact(0, 4, 0.0), Compact(4, 0, 0.0)):
        assert template_named("vision.compact").space(empty.workload(), Place.named("host").target) is None
