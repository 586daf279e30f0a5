"""Packs the agent as one file that Python runs. Start at `write_agent`."""

from __future__ import annotations

import zipapp
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

import board_agent


def write_agent(path: Path) -> None:
    """Write the agent to `path`. Raises OSError if the file cannot be written."""
    with TemporaryDirectory() as folder:
        copytree(Path(board_agent.__file__).parent, Path(folder, "board_agent"), ignore=ignore_patterns("__pycache__"))
        zipapp.create_archive(folder, path, "/usr/bin/env python3", "board_agent.serve:run")
