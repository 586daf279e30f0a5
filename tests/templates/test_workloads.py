"""Sizes of anchors that are none are refused where they are made, whichever file they come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from templates.traffic import bytes_of
from templates.workloads import Conv2d, Dense

CONV = Conv2d(1, 8, 9, 9, 16, (3, 3), groups=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"groups": 0},
        {"out_channels": 0},
        {"height": -1},
        {"kernel": (0, 3)},
        {"strides": (1, 0)},
        {"dilation": (0, 1)},
    ],
)
def test_a_convolution_without_a_size_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="less than 1"):
        replace(CONV, **wrong)


@pytest.mark.parametrize("sizes", [(0, 4, 4), (1, 0, 4), (1, 4, -1)])
def test_a_dense_layer_without_a_size_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="are no product"):
        Dense(*sizes)


@pytest.mark.parametrize("dtype", ["9" * 5000 + "f4", "float33", "(2,", ""])
def test_a_workload_of_a_type_that_is_none_moves_no_known_bytes(dtype: str) -> None:
    """NumPy raises a SyntaxError for some of these."""
    workload = Conv2d(1, 4, 8, 8, 4, (1, 1), (1, 1), (0, 0, 0, 0)).workload((), dtype)
    assert bytes_of(workload) is None
