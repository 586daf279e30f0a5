"""What an agent is served with where nothing else is said. Light to import: the command line shows it in its help."""

from __future__ import annotations

import os
from pathlib import Path

PORT = 9190
TURN_SECONDS = 60.0  # while others wait: preparing again takes the next turn a few of them
ALIVE_SECONDS = 2.0  # between signs of life
MOST_ALIVE_SECONDS = 60.0  # a host waits for a few of them, and should not wait for ever


def default_folder() -> Path:
    """Of the keys."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "edgetune" / "agent"
