"""This module keeps the turn queue of a board: a folder with one file per connection. Start at `TurnQueue.enter`.

Files are empty and named NUMBER.STATE.PAIRING. Numbers only grow, so the order depends on no clock. The process that
made a file holds a lock on it, so a process that dies leaves the queue. Pairings take turns: a pairing with several
waiting connections gets one turn a round. When its turn ends, it goes behind all pairings that wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Iterator, NamedTuple

MOST = 24  # connections of paired hosts at a time
MOST_OF_ONE = 4  # connections of one pairing at a time
_IDLE, _WAITS, _MEASURES, _SERVED = "idle", "waits", "measures", "served"


class Full(Exception):
    """Raised with one line when too many connections are open already."""


class QueuePosition(NamedTuple):
    """The state of the queue as one connection sees it.

    `place` is the number of turns until its own. It is 0 for the connection that has the turn, and for one that does
    not wait. `measures` is the pairing that has the turn, or "". `waiting` is the number of waiting connections.
    """

    place: int
    measures: str
    waiting: int


class _Entry(NamedTuple):
    number: int
    state: str
    pairing: str

    @property
    def file(self) -> str:
        return f"{self.number:012d}.{self.state}.{self.pairing}"


class TurnQueue:
    """A queue that is kept in `folder`, which all agents of one board share.

    Methods raise OSError where files cannot be made there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(0o700, parents=True, exist_ok=True)

    def enter(self, pairing: str) -> QueueEntry:
        """Add a connection that does not wait yet. Raises Full if there are too many."""
        with self.locked():
            entries = self.entries()
            present = [e.pairing for e in entries if e.state != _SERVED]
            if present.count(pairing) >= MOST_OF_ONE:
                raise Full(f"this host has {MOST_OF_ONE} connections to it already")
            if len(present) >= MOST:
                raise Full(f"{MOST} connections are open there")
            made = _Entry(_next_number(entries), _IDLE, pairing)
            lock = os.open(str(self._folder / made.file), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return QueueEntry(self, made, lock)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the queue's lock for the block, so that no other process changes the queue."""
        lock = os.open(str(self._folder / "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def entries(self) -> list[_Entry]:
        """Return the entries of all connections, and an entry for the last turn of each pairing.

        Entries of processes that have died are removed first. Call it with the lock held.
        """
        found = [_parsed(name) for name in os.listdir(str(self._folder)) if name.count(".") == 2]
        for entry in [e for e in found if e.state != _SERVED and self._is_gone(e)]:
            found.remove(entry)
            if entry.state == _MEASURES:
                found = [*found, self.change(entry, _SERVED, found)]
            else:
                os.unlink(str(self._folder / entry.file))
        for earlier in _outdated(found):
            os.unlink(str(self._folder / earlier.file))
            found.remove(earlier)
        return found

    def change(self, entry: _Entry, state: str, entries: list[_Entry]) -> _Entry:
        """Give an entry another state and the next number."""
        made = _Entry(_next_number([*entries, entry]), state, entry.pairing)
        os.rename(str(self._folder / entry.file), str(self._folder / made.file))
        return made

    def note_served(self, pairing: str, entries: list[_Entry]) -> None:
        made = _Entry(_next_number(entries), _SERVED, pairing)
        os.close(os.open(str(self._folder / made.file), os.O_RDWR | os.O_CREAT, 0o600))

    def _is_gone(self, entry: _Entry) -> bool:
        lock = os.open(str(self._folder / entry.file), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(lock)


class QueueEntry:
    """An entry that one connection holds in the queue.

    It is a context manager that leaves the queue at the end. The entry also leaves when its process dies.
    """

    def __init__(self, line: TurnQueue, entry: _Entry, lock: int) -> None:
        self._line, self._entry, self._lock = line, entry, lock
        self.pairing = entry.pairing

    def __enter__(self) -> QueueEntry:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)  # the next process that reads the queue removes the entry

    def log(self, text: str) -> None:
        print(f"{self.pairing}'s {text}", file=sys.stderr, flush=True)

    def wait(self) -> None:
        """Start to wait, behind all connections that wait now."""
        with self._line.locked():
            self._entry = self._line.change(self._entry, _WAITS, self._line.entries())

    def rest(self) -> None:
        """Stop waiting or measuring."""
        with self._line.locked():
            if self._entry.state == _MEASURES:
                self._line.note_served(self.pairing, self._line.entries())
            self._entry = self._line.change(self._entry, _IDLE, self._line.entries())

    def look(self) -> QueuePosition:
        """Return the state of the queue. If this connection is next and the board is free, it gets the turn."""
        with self._line.locked():
            entries = self._line.entries()
            measures = next((e.pairing for e in entries if e.state == _MEASURES), "")
            waiting = _in_order(entries)
            place = waiting.index(self._entry) + 1 if self._entry in waiting else 0
            if place == 1 and not measures:
                self._entry = self._line.change(self._entry, _MEASURES, entries)
                return QueuePosition(0, self.pairing, len(waiting) - 1)
            return QueuePosition(place, measures, len(waiting))

    def take(self) -> bool:
        """Take the turn at once, unless another connection waits or measures. Return whether it was taken."""
        with self._line.locked():
            entries = self._line.entries()
            if any(e.state in (_WAITS, _MEASURES) for e in entries):
                return False
            self._entry = self._line.change(self._entry, _MEASURES, entries)
            return True


class Alone:
    """A stand-in for QueueEntry that is used where no other host can come."""

    def log(self, text: str) -> None:
        """Do nothing, because nobody would read the log."""

    def wait(self) -> None:
        """Do nothing, because there is no queue."""

    def rest(self) -> None:
        """Do nothing, because there is no queue."""

    def take(self) -> bool:
        return True

    def look(self) -> QueuePosition:
        return QueuePosition(0, "", 0)


def _parsed(name: str) -> _Entry:
    number, state, pairing = name.split(".")
    return _Entry(int(number), state, pairing)


def _next_number(entries: list[_Entry]) -> int:
    return 1 + max((e.number for e in entries), default=0)


def _outdated(entries: list[_Entry]) -> list[_Entry]:
    last = {e.pairing: e for e in sorted(entries) if e.state == _SERVED}
    return [e for e in entries if e.state == _SERVED and e != last[e.pairing]]


def _in_order(entries: list[_Entry]) -> list[_Entry]:
    """Return the waiting connections in the order of their turns.

    The order is by rounds: a pairing has one connection in each round, its oldest first. A pairing that measures now
    starts one round later. Within a round the order is by the later of two numbers: when the connection began to wait,
    and when its pairing was served last.
    """
    served = {e.pairing: e.number for e in entries if e.state == _SERVED}
    rounds = Counter(e.pairing for e in entries if e.state == _MEASURES)
    keyed = []
    for entry in sorted(e for e in entries if e.state == _WAITS):
        keyed.append((rounds[entry.pairing], max(entry.number, served.get(entry.pairing, 0)), entry))
        rounds[entry.pairing] += 1
    return [entry for _, _, entry in sorted(keyed)]
