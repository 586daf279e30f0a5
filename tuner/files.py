"""Write files whole or not at all. `write_whole` does it."""

from __future__ import annotations

from pathlib import Path

from board_agent.disk import whole_file
from tuner.errors import BadInput


def write_whole(path: Path, content: bytes) -> None:
    """Write to a file beside `path` and rename it, so that a full disk or a kill leaves no incomplete file. Raises
    BadInput if it cannot be written."""
    try:
        with whole_file(str(path)) as file:
            file.write(content)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
