"""Formats the examples that `--help` ends with.

A command's examples stand in its own file. tests/tuner/cli/test_examples.py parses them all.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape

_TITLE = "Examples:"


def examples(*lines: str) -> str:
    """Return the lines as a command's epilog. Each line is a whole command that fits into 78 columns."""
    return escape("\n".join((_TITLE, *lines)))


def examples_of(command: Any) -> list[str]:
    """Return the example lines of a command's epilog, or an empty list if it has none."""
    title, *lines = (command.epilog or "").replace("\\[", "[").splitlines() or [""]
    return lines if title == _TITLE else []
