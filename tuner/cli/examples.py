"""What `--help` ends with. A command's examples stand beside it; tests/tuner/cli/test_examples.py parses them all."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

_TITLE = "Examples:"


def examples(*lines: str) -> str:
    """As a command's epilog. A line is a whole command that fits into 78 columns."""
    return escape("\n".join((_TITLE, *lines)))


def examples_of(command: Any) -> list[str]:
    """The lines of a command's epilog; none where it has no examples."""
    title, *lines = (command.epilog or "").replace("\\[", "[").splitlines() or [""]
    return lines if title == _TITLE else []
