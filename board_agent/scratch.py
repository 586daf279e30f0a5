"""This module makes folders for temporary files that live as long as a lock on them is held. Start at `Scratch`.

A folder whose holder has died is removed by the next `sweep`. Such a folder is recognised by the lock file in it, whose
name nothing else uses, and by its owner. The name of the folder alone proves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from typing import Any

_NAMED = "edgetune-"  # so that a sweep does not look into every folder there is
MARKER = ".edgetune-deletes-this-folder"  # the lock file; it stays empty, so that even a full disk has room for it


class Scratch:
    """A new folder that is locked as long as it is in use.

    The kernel releases the lock however its holder dies. Other processes see the lock, even those in other containers
    that use the same disk.
    """

    def __init__(self, base: str, prefix: str = f"{_NAMED}scratch-", mode: int = 0o700) -> None:
        """Remove dead folders from `base` and make a new one there. Raises OSError if that is not possible."""
        sweep(base)
        self.path = tempfile.mkdtemp(prefix=prefix, dir=base)
        # The marker is locked before it gets its name, so that a sweep never sees it unlocked while its holder lives.
        unnamed = os.path.join(self.path, MARKER + ".new")
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(unnamed, os.path.join(self.path, MARKER))
        os.chmod(self.path, mode)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder and its content. Further calls do nothing."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def sweep(base: str) -> None:
    """Remove this user's folders whose processes have died. Raises OSError if `base` cannot be read."""
    for entry in os.scandir(base):
        with contextlib.suppress(OSError):  # it was removed meanwhile, or belongs to another user
            if entry.name.startswith(_NAMED) and entry.is_dir(follow_symlinks=False) and _is_dead(entry.path):
                _remove(entry.path)


def _remove(folder: str) -> None:
    """Delete a folder, its marker last, so that the next sweep recognises the rest if this process is killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != MARKER:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: str) -> bool:
    """Tell whether a folder and its marker belong to this user and no process holds the lock.

    Raises OSError if the folder has no marker.
    """
    if os.lstat(folder).st_uid != os.getuid():
        return False
    marker = os.open(os.path.join(folder, MARKER), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(marker)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return False
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(marker)
    return True
