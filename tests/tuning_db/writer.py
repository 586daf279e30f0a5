"""Processes that add trials until they are done or killed. `start` gives a `Writer`, which says what it has committed.

They are forked from a server that has imported everything, so that many can be killed in little time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from tests.tuning_db.made import config, trial
from tuning_db.logs import line_of, trial_of
from tuning_db.record import Trial, Workload
from tuning_db.store import open_db

_FORKS = multiprocessing.get_context("forkserver")
_OPENING = "opening"


def together(count: int) -> Barrier:
    """For so many writers to begin at the same time."""
    return _FORKS.Barrier(count)


def _add_trials(url: str, label: str, limit: int | None, say: Connection, start: Barrier | None) -> None:
    """Say "opening", then after every commit the trial that was committed, as a line of a log."""
    say.send(_OPENING)
    workload = Workload("conv2d", {"writer": label})
    with open_db(url) as store:
        if start is not None:
            start.wait()
        for tile in count() if limit is None else range(limit):
            made = trial(tile, workload=workload)
            store.begin(workload, made.device, [config(tile)])
            store.add(made)
            say.send(line_of(made))


class Writer:
    """A writing process. Ends with `finish` or `kill`."""

    def __init__(self, url: str | Path, label: str, limit: int | None = None, start: Barrier | None = None) -> None:
        _FORKS.set_forkserver_preload([__name__, "alembic.command"])
        self._ear, mouth = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_add_trials, args=(str(url), label, limit, mouth, start), daemon=True)
        self._process.start()
        mouth.close()
        assert self._ear.recv() == _OPENING
        assert self._process.pid is not None
        self.pid = self._process.pid

    def next_trial(self) -> Trial:
        """Wait for the next one that is committed."""
        return trial_of(self._ear.recv())

    def has_committed(self, seconds: float) -> bool:
        """Whether there is a next one within so long."""
        return self._ear.poll(seconds)

    def finish(self) -> list[Trial]:
        """Wait for its end; the committed trials that were not taken yet. Raises AssertionError if it failed."""
        rest = list(self._rest())
        self._process.join()
        assert self._process.exitcode == 0
        return rest

    def kill(self) -> list[Trial]:
        """SIGKILL; the committed trials that were not taken yet."""
        self._process.kill()
        self._process.join()
        return list(self._rest())

    def _rest(self) -> Iterator[Trial]:
        try:
            while True:
                yield self.next_trial()
        except (EOFError, OSError):  # OSError: killed in the middle of saying something
            self._ear.close()
