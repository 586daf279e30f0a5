"""Ctrl-C at random moments of real commands; `python -m tests.interrupts` has more of them."""

from __future__ import annotations

import pytest

from tests.interrupts import problems_of


@pytest.mark.night
def test_commands_end_at_once_and_leave_nothing() -> None:
    assert problems_of(count=18, seed=int.from_bytes(b"ctrl-c", "big")) == []
