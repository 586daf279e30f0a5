"""A limit for the memory that reading somebody's file may take. Start at `memory_limited`."""

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
    """Let this process have `spare` bytes more than it has, most of what is free if nothing is said, while it reads
    `path`: a small file can ask for any number of values.

    Raises BadInput where that is not enough.
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
