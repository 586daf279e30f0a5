"""This module recognises a full disk, which is no candidate's fault, and writes files that are complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Any, Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def full_disk(text: str) -> str | None:
    """Return the system's message about a full or read-only disk if a text contains it, or else None.

    LLVM aborts on such a disk, and linkers and drivers' compilers print the message. So only their output shows it.
    """
    return next((problem for problem in map(os.strerror, FULL) if problem in text), None)


@contextlib.contextmanager
def whole_file(path: str, mode: int = 0o666) -> Iterator[Any]:
    """Open a file to write bytes to, which gets its name only when all of it is on the disk.

    After an error there is no file. Until then the file has a temporary name that nobody can predict, and no link of
    that name is followed. `mode` holds the permissions, as in open(2).
    """
    place, name = os.path.split(os.path.abspath(path))
    part = os.path.join(place, f".{name[:200]}.{secrets.token_hex(8)}.partial")
    file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)  # the incomplete file would only keep the disk full
        raise
    folder = os.open(place, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, which only their owner may enter, whatever the umask is."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(0o700, exist_ok=True)
    os.chmod(str(folder), 0o700)
