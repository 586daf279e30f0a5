"""What others have written is a value or a ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from board_agent.parsing import parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_it_reads_json(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


DEEP = 200_000
WRONG = {
    "lists": "[" * DEEP,
    "objects": '{"a":' * DEEP,
    "whole lists": "[" * DEEP + "]" * DEEP,
    "nothing": "",
    "words": "nonsense",
    "no text": b"\xff",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_anything_else_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each has words of its own
        parse_json(text)
