"""Stable argsort of rows and of segments of any lengths, and the first of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.template import template_named
from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.argsort import Argsort, ArgsortOperator
from vision_ops.selected import INVALID

__all__ = ["place"]
TEMPLATE = template_named("vision.argsort")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, -np.nan, 3e38, -1e-45], np.float32)


def _error(sort: Argsort, where: Place, dtype: str = "float32", samples: int = 0, seed: int = 0) -> float:
    workload = sort.workload(dtype)
    inputs = ArgsortOperator().random_inputs(workload, np.random.default_rng(seed))
    configs = configs_of(workload, where.target, samples, seed)
    return max(Compiled.of(workload, config, where).error(*inputs) for config in configs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", TEMPLATE.dtypes)
@pytest.mark.parametrize("descending", [False, True])
def test_rows(place: Place, descending: bool, dtype: str) -> None:
    assert _error(Argsort(3, 1009, 1009, descending), place, dtype, samples=2) == 0


def test_the_first_of_rows(place: Place) -> None:
    assert _error(Argsort(2, 5003, 100, descending=True), place, samples=2) == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("segments", [1, 50, 10_000])
def test_segments_of_very_different_lengths(place: Place, segments: int) -> None:
    assert _error(Argsort(1, 5003, 5003, True, segments), place, samples=2) == 0


def test_a_million(place: Place) -> None:
    workload = Argsort(1, 1_000_000, 1_000_000).workload()
    inputs = ArgsortOperator().random_inputs(workload, np.random.default_rng(0))
    assert Compiled.of(workload, configs_of(workload, place.target)[0], place).error(*inputs) == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("descending", [False, True])
def test_nan_comes_last_and_equal_values_stay_in_order(place: Place, descending: bool) -> None:
    workload = Argsort(1, 500, 500, descending).workload()
    data = np.random.default_rng(0).choice(SPECIAL, (1, 500))
    for config in configs_of(workload, place.target, samples=2):
        (order,) = Compiled.of(workload, config, place)(data)
        ordered = data[0, order[0]]
        numbers = ordered[: int((~np.isnan(data)).sum())]
        with np.errstate(invalid="ignore"):
            steps = np.diff(numbers)
        assert not np.isnan(numbers).any()
        assert not ((steps > 0) if descending else (steps < 0)).any()
        assert Compiled.of(workload, config, place).error(data) == 0


@pytest.mark.sampled(2)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_anything_with_any_config(data: st.DataObject) -> None:
    host = Place.named("host")
    rows, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 400))
    segments = data.draw(st.integers(0, 40)) if rows == 1 else 0
    top = length if segments else data.draw(st.integers(1, length))
    sort = Argsort(rows, length, top, data.draw(st.booleans()), segments, not segments and data.draw(st.booleans()))
    values = np.array(data.draw(st.lists(st.floats(width=32), min_size=1, max_size=20)), np.float32)
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    workload = sort.workload()
    inputs = [rng.choice(values, (rows, length)), *ArgsortOperator().random_inputs(workload, rng)[1:]]
    config = configs_of(workload, host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(workload, config, host).error(*inputs) == 0


def test_segments_that_all_are_empty_but_one(place: Place) -> None:
    workload = Argsort(1, 100, 100, False, 5).workload()
    data = np.random.default_rng(0).standard_normal((1, 100)).astype(np.float32)
    offsets = np.array([0, 0, 0, 100, 100, 100], np.int32)
    for config in configs_of(workload, place.target, samples=2):
        assert Compiled.of(workload, config, place).error(data, offsets) == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("offsets", [[5, 2, 90, -7, 3, 1], [0, 0, 0, 0, 0, 0], [2**31 - 1] * 6, [-(2**31)] * 6])
def test_offsets_that_are_none_lead_nowhere_outside(place: Place, offsets: list[int]) -> None:
    workload = Argsort(1, 700, 700, False, 5).workload()
    data = np.zeros((1, 700), np.float32)
    for config in configs_of(workload, place.target):
        (order,) = Compiled.of(workload, config, place)(data, np.array(offsets, np.int32))
        assert order.min() >= 0
        assert order.max() < 700


def test_what_is_chosen_alone_is_sorted(place: Place) -> None:
    """All, none, one, and enough for several blocks."""
    workload = Argsort(4, 2000, 2000, True, counted=True).workload()
    data = np.random.default_rng(0).standard_normal((4, 2000)).astype(np.float32)
    places, count = np.full((4, 2000), INVALID, np.int32), np.array([2000, 0, 1, 1100], np.int32)
    places[0], places[2, 0], places[3, :1100] = np.arange(2000), 1999, np.arange(900, 2000)
    for config in configs_of(workload, place.target, samples=2):
        assert Compiled.of(workload, config, place).error(data, places, count) == 0


def test_choices_that_are_none_lead_nowhere_outside(place: Place) -> None:
    workload = Argsort(4, 700, 700, counted=True).workload()
    data, rng = np.zeros((4, 700), np.float32), np.random.default_rng(0)
    places = rng.integers(-(2**31), 2**31, (4, 700)).astype(np.int32)
    for config in configs_of(workload, place.target):
        (order,) = Compiled.of(workload, config, place)(
            data, places, np.array([2**31 - 1, -(2**31), 701, -1], np.int32)
        )
        assert INVALID <= order.min() <= order.max() < 700


@pytest.mark.parametrize(
    "wrong", [(1, 5, 5, True, 3, True), (2, 5, 6), (-1, 5, 5), (2, 5, 5, True, 3), (1, 5, 4, True, 3)]
)
def test_what_cannot_be_had_is_refused(wrong: tuple) -> None:
    with pytest.raises(ValueError, match="argsort: "):
        Argsort(*wrong)


def test_nothing_is_done_where_nothing_is() -> None:
    assert TEMPLATE.space(Argsort(0, 5, 5).workload(), Place.named("host").target) is None
    assert TEMPLATE.space(Argsort(3, 5, 0).workload(), Place.named("host").target) is None
