"""Errors of libraries, as one line."""

from __future__ import annotations

import pytest

from tuner.errors import last_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("Traceback\n  at x\nout of memory\n"), "out of memory"),
        (MemoryError(), "MemoryError"),  # it says nothing
        (RuntimeError(" \n"), "RuntimeError"),
        (RuntimeError("x" * 1000), "x" * 300),
    ],
)
def test_an_error_is_its_last_line(error: Exception, line: str) -> None:
    assert last_line(error) == line
