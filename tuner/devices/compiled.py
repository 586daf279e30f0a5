"""Keeps native code that is compiled on the user's machine, and makes it appear there whole or not at all. Start at
`cache_folder` and `made_whole`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tuner.errors import BadInput


def cache_folder() -> Path:
    """Return the folder for compiled code: $XDG_CACHE_HOME/edgetune, by default ~/.cache/edgetune. Raises BadInput if
    there is neither that variable nor a home folder."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named) / "edgetune"
    try:
        return Path.home() / ".cache/edgetune"
    except RuntimeError as error:
        raise BadInput("there is no home folder to keep compiled things in: set XDG_CACHE_HOME") from error


def digest(parts: Iterable[bytes]) -> str:
    """Return a short name for what something was compiled from."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:16]


@contextlib.contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Yield the path to which the block is to write what is to appear at `path`. The file is moved there at the end,
    unless the block raises or has written nothing. Raises OSError if the folder cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        yield made
        if made.exists():
            os.replace(made, path)
