"""Detections in another order: what rounding explains is put back, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.graph import Count, TensorInfo
from tuner.module.rows import REACH, in_order_of

OUTPUTS = (
    TensorInfo("boxes", (100, 4), "float32", Count(0, 3)),
    TensorInfo("scores", (100, 1), "float32", Count(0, 3)),
    TensorInfo("other", (5,), "float32"),
)
TOLERANCE = 1e-4


def detections(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.random((count, 1)))[::-1]
    values = {"boxes": 100 * rng.random((count, 4)), "scores": scores, "other": rng.random(5)}
    return {name: np.ascontiguousarray(value, np.float32) for name, value in values.items()}


def moved(values: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    return {name: v[order] if name != "other" else v for name, v in values.items()}


@settings(deadline=None)
@given(count=st.integers(0, 60), seed=st.integers(0, 1000), data=st.data())
def test_rows_that_changed_places_are_put_back(count: int, seed: int, data: st.DataObject) -> None:
    wanted, order = detections(count, seed), np.arange(count)
    for at in data.draw(st.lists(st.integers(0, max(0, count - 2)), max_size=5)) if count > 1 else ():
        order[at : at + 4] = data.draw(st.permutations(order[at : at + 4].tolist()))
    noise = 1 + np.float32(data.draw(st.floats(-2e-5, 2e-5)))
    found = {name: value * noise for name, value in moved(wanted, order).items()}
    if np.abs(order - np.arange(count)).max(initial=0) > REACH:
        return
    back = in_order_of(wanted, found, OUTPUTS, TOLERANCE)
    for name, value in wanted.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-4)


@settings(deadline=None)
@given(count=st.integers(1, 40), seed=st.integers(0, 1000), data=st.data())
def test_every_row_is_there_once(count: int, seed: int, data: st.DataObject) -> None:
    wanted = detections(count, seed)
    order = np.array(data.draw(st.permutations(range(count))))
    found = moved(wanted, order)
    back = in_order_of(wanted, found, OUTPUTS, TOLERANCE)
    assert sorted(map(tuple, back["boxes"])) == sorted(map(tuple, found["boxes"]))


@pytest.mark.parametrize("name", ["boxes", "scores"])
def test_a_wrong_value_stays_wrong(name: str) -> None:
    wanted = detections(30, 0)
    found = {k: v.copy() for k, v in wanted.items()}
    found[name][7, 0] += 0.01 * np.abs(wanted[name]).max()
    back = in_order_of(wanted, found, OUTPUTS, TOLERANCE)
    np.testing.assert_array_equal(back[name], found[name])


def test_another_order_stays_one() -> None:
    wanted = detections(100, 0)
    found = moved(wanted, np.arange(100)[::-1])
    back = in_order_of(wanted, found, OUTPUTS, TOLERANCE)
    assert np.abs(back["scores"] - wanted["scores"]).max() > 0.1


def test_another_number_of_rows_is_left_alone() -> None:
    wanted, found = detections(9, 0), detections(8, 0)
    assert in_order_of(wanted, found, OUTPUTS, TOLERANCE) == found
