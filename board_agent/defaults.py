"""This module holds the agent's default settings. It is light to import, because the command line's help shows them."""

from __future__ import annotations

import os
from pathlib import Path

PORT = 9190
TURN_SECONDS = 60.0  # of a host's turn while others wait; preparing again costs the next turn a few of them
ALIVE_SECONDS = 2.0  # between signs of life
MOST_ALIVE_SECONDS = 60.0  # a host waits for several missing signs of life, and must not wait for ever


def default_folder() -> Path:
    """Return the folder in which the agent keeps its keys by default."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "edgetune" / "agent"
