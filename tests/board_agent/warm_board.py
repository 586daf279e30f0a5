"""An agent of a board whose /sys is another folder: its first argument, the rest is the agent's."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from board_agent import serve, session
from board_agent.condition import condition

if __name__ == "__main__":
    session.condition = partial(condition, Path(sys.argv[1]))  # type: ignore[assignment]
    sys.exit(serve.main(sys.argv[2:]))
