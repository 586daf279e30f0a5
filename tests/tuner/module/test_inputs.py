"""Inputs that a module is verified on."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.graph import Count, TensorInfo
from tuner.module.inputs import DISTRIBUTIONS, drawn_inputs, random_inputs

FLOATS = [TensorInfo("x", (40, 50), "float32")]


def test_seeds_go_through_the_distributions() -> None:
    drawn = [drawn_inputs(FLOATS, seed) for seed in range(2 * len(DISTRIBUTIONS))]
    assert [name for _, name in drawn] == [*DISTRIBUTIONS] * 2
    found = {name: arrays["x"] for arrays, name in drawn}
    assert all(array.dtype == np.float32 for array in found.values())
    assert abs(found["normal"].std() - 1) < 0.1
    assert (found["pixels"].min(), found["pixels"].max()) == (0, 255)
    assert np.abs(found["small"]).max() < 0.01
    assert abs(found["large mean"].mean() - 100) < 1
    assert 0.05 < (found["sparse"] != 0).mean() < 0.15


def test_all_are_normal_where_values_decide_how_much_there_is() -> None:
    boxes = [TensorInfo("boxes", (9, 4), "float32", Count(0, 1))]
    assert {drawn_inputs(FLOATS, seed, boxes)[1] for seed in range(5)} == {"normal"}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_narrow_integers_have_their_whole_range(dtype: str) -> None:
    info = np.iinfo(dtype)
    found = random_inputs([TensorInfo("x", (200_000,), dtype)], 0)["x"]
    assert found.dtype == dtype
    assert found.min() < info.min + 200
    assert found.max() > info.max - 200


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integers_choose_any_entry_of_what_they_choose_from(dtype: str) -> None:
    found = random_inputs([TensorInfo("x", (500,), dtype, below=7)], 0)["x"]
    assert found.dtype == dtype
    assert set(found.tolist()) == set(range(7))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "bool"])
def test_others_may_be_indices(dtype: str) -> None:
    found = random_inputs([TensorInfo("x", (50,), dtype)], 0)["x"]
    assert found.dtype == dtype
    assert set(found.astype(int)) == {0, 1}
