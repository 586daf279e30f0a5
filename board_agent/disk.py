"""A disk that takes nothing more, which is no candidate's fault, and files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Any, Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def full_disk(text: str) -> str | None:
    """What is wrong with the disk, where that is what a text tells of. LLVM aborts on it, linkers and drivers'
    compilers print it: only the text tells."""
    return next((problem for problem in map(os.strerror, FULL) if problem in text), None)


@contextlib.contextmanager
def whole_file(path: str, mode: int = 0o666) -> Iterator[Any]:
    """A file to write bytes to, that has its name when all of it is on the disk; there is none after an error. Until
    then it has a name that nobody can know before, and no link of that name is followed. `mode`: as of open(2)."""
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
            os.remove(part)  # what fitted would only keep the disk full
        raise
    folder = os.open(place, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_private(folder: Path) -> None:
    """Make a folder, and those that it is in, that only its owner may enter, whatever the umask says."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(0o700, exist_ok=True)
    os.chmod(str(folder), 0o700)
