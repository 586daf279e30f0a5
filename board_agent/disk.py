"""A disk that takes nothing more, which is no candidate's fault."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def full_disk(text: str) -> str | None:
    """What is wrong with the disk, where that is what a text tells of. LLVM aborts on it, linkers and drivers'
    compilers print it: only the text tells."""
    return next((problem for problem in map(os.strerror, FULL) if problem in text), None)


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[Any]:
    """A file to write bytes to, that has its name when all of it is on the disk; there is none after an error."""
    part = path + ".new"
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)  # what fitted would only keep the disk full
        raise
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
