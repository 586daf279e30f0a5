"""Numbers as a person reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.report.text import microseconds, milliseconds, number, times_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0412, "0.0412"),
        (9.996, "10.0"),
        (0.099999, "0.100"),
        (16.87, "16.9"),
        (601.4, "601"),
        (11740.2, "11,740"),
        (-2.5, "-2.50"),
        (0.000312, "0.000312"),
        (0.0000026, "2.60e-06"),
        (3.8e-7, "3.80e-07"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent_that_is_not_needed(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-12, 1e12))
def test_a_number_is_what_it_says(value: float) -> None:
    said = float(number(value).replace(",", ""))
    assert said == pytest.approx(value, rel=0.0051)
    assert ("e" in number(value)) == (float(f"{value:.2e}") < 1e-4)


def test_times_and_ratios_are_said_as_they_are() -> None:
    assert (milliseconds(0.0123456), microseconds(0.01174), milliseconds(None)) == ("12.3", "11,740", "-")
    assert times_text(1.754) == "1.75 times faster"
    assert times_text(0.94) == "1.06 times slower"
    assert times_text(1.0) == "1.00 times faster"
