"""Limits the memory that reading a user's file may take. Start at `memory_limited`."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from board_agent.sandbox import limit_memory
from tuner.errors import BadInput

_SHARE = 0.8  # of the memory that is free


@contextmanager
def memory_limited(path: Path, spare: int | None = None) -> Iterator[None]:
    """Let this process take at most `spare` more bytes of memory while it reads `path`.

    The default is most of the memory that is free. The limit is needed because a small file can ask for any number of
    values. Raises BadInput if the limit is too low for the file.
    """
    spare = int(_SHARE * psutil.virtual_memory().available) if spare is None else spare
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(spare)
    try:
        yield
    except MemoryError:
        raise BadInput(f"{path}: takes more than {spare / 1e9:.1f} GB of memory to load, which are not free") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
