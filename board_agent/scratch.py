"""Folders for temporary files, each of which lives as long as a lock on it is held. Start at `Scratch`.

Those whose holder has died are swept away. What proves that a folder is one of them is the lock file in it, of a name
that nothing else has, and its owner; the folder's own name proves nothing by itself.
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
MARKER = ".edgetune-deletes-this-folder"  # it stays empty: a full disk has room for it


class Scratch:
    """A new folder. The lock, which the kernel releases when its holder dies however that happens, tells other
    processes, also those in other containers that have the same disk, that it is in use."""

    def __init__(self, base: str, prefix: str = f"{_NAMED}scratch-", mode: int = 0o700) -> None:
        """Make it in `base`, where dead ones are swept away first. Raises OSError where that cannot be done."""
        sweep(base)
        self.path = tempfile.mkdtemp(prefix=prefix, dir=base)
        # Locked before it gets its name: nobody can see a marker that is not locked by a live process.
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
        """Remove the folder and all in it. More calls do nothing."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def sweep(base: str) -> None:
    """Remove this user's folders whose processes have died. Raises OSError where `base` cannot be read."""
    for entry in os.scandir(base):
        with contextlib.suppress(OSError):  # it went away meanwhile, or is another user's
            if entry.name.startswith(_NAMED) and entry.is_dir(follow_symlinks=False) and _is_dead(entry.path):
                _remove(entry.path)


def _remove(folder: str) -> None:
    """Delete a folder, its marker last: whoever is killed meanwhile leaves what the next one knows."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != MARKER:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: str) -> bool:
    """Whether a folder of this user has a marker of this user, which nobody has locked. Raises OSError where it has
    none."""
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
