"""What an agent is served with where nothing else is said. Light to import: the command line shows it in its help."""

from __future__ import annotations

import os
from pathlib import Path

PORT = 9190
TURN_SECONDS = 60.0  # while others wait: preparing again takes the next turn a few of them
ALIVE_SECONDS = 2.0  # between signs of life
_MOST_ALIVE_SECONDS = 3600.0  # sockets take no times that are much longer


def default_folder() -> Path:
    """Of the keys."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "edgetune" / "agent"


def why_no_seconds(turn: float, alive: float) -> str | None:
    """Say, in one line, which of an agent's options is no time that it can keep to; None if both are."""
    if not 0 < turn < float("inf"):
        return f"--turn must be a positive number of seconds, not {turn:g}"
    if not 0 < alive <= _MOST_ALIVE_SECONDS:
        return f"--alive must be a positive number of seconds up to {_MOST_ALIVE_SECONDS:g}, not {alive:g}"
    return None
