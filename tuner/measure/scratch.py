"""Makes the folder for a runner's temporary files, which is removed with the runner. Start at `Scratch`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import board_agent.scratch
from board_agent.disk import full_disk
from tuner.errors import BadInput
from tuning_db.record import Failure


class Scratch:
    """A folder that `board_agent.scratch` makes and locks. A `with` statement gives its path."""

    def __init__(self, root: Path | None = None) -> None:
        """Make the folder in `root` (default: the system's folder for temporary files, or TMPDIR). Raises BadInput if
        that cannot be written."""
        base = Path(tempfile.gettempdir() if root is None else root)
        try:
            self._folder = board_agent.scratch.Scratch(str(base))
        except OSError as error:
            raise BadInput(f"{base}: cannot be used for temporary files ({error.strerror}): set TMPDIR") from error
        self.path = Path(self._folder.path)
        self._libraries = 0

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_library(self) -> Path:
        """Return a file of the folder for a candidate's library that nothing else is written to."""
        self._libraries += 1
        return self.path / f"k{self._libraries}.so"

    def check_disk(self, failure: Failure | None) -> None:
        """Raise BadInput where the disk is why a build failed."""
        problem = disk_problem(failure)
        if problem is not None:
            raise BadInput(f"{self.path.parent}: {problem}: free some space there or set TMPDIR")

    def close(self) -> None:
        """Remove the folder and all in it. More calls do nothing."""
        self._folder.close()


def disk_problem(failure: Failure | None) -> str | None:
    """Return what is wrong with the disk if that is why a build failed, else None. Such a failure is no candidate's
    fault."""
    return None if failure is None else full_disk(failure.message)
