"""The folder for a runner's temporary files. Each lives as long as a lock on it is held; dead ones are swept away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from board_agent.disk import full_disk
from tuner.errors import BadInput
from tuning_db.record import Failure

_PREFIX = "edgetune-"
_LOCK = "lock"
_NEWBORN_SECONDS = 3600.0  # a folder without a lock file may be one that is just being made


class Scratch:
    """A temporary folder of this process. A file lock, which the kernel releases when its holder dies however that
    happens, tells other processes (also in other containers on the same folder) that it is in use."""

    def __init__(self, root: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Raises BadInput if the folder for temporary files cannot be written."""
        base = Path(tempfile.gettempdir() if root is None else root)
        try:
            sweep(base, clock())
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            # Locked before it gets its name: nobody can see a lock that is not held by a live process.
            unnamed = self.path / "unlocked"
            self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            unnamed.rename(self.path / _LOCK)
        except OSError as error:
            raise BadInput(f"{base}: cannot be used for temporary files ({error.strerror}): set TMPDIR") from error

    def check_disk(self, failure: Failure | None) -> None:
        """Raises BadInput where the disk is why a build failed."""
        problem = disk_problem(failure)
        if problem is not None:
            raise BadInput(f"{self.path.parent}: {problem}: free some space there or set TMPDIR")

    def close(self) -> None:
        """Remove the folder and all in it. More calls do nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _is_stale(folder: Path, now: float) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return now - folder.stat().st_mtime > _NEWBORN_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def sweep(base: Path, now: float) -> None:
    """Remove the folders of runners that died without doing so. Other users' folders are left alone."""
    for folder in base.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # it went away meanwhile, or is another user's
            if folder.stat().st_uid == os.getuid() and _is_stale(folder, now):
                shutil.rmtree(folder, ignore_errors=True)


def disk_problem(failure: Failure | None) -> str | None:
    """What is wrong with the disk, where that is why a build failed: no candidate's fault."""
    return None if failure is None else full_disk(failure.message)
