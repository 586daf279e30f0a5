"""The turns of a board: one file for each connection of a paired host, in a folder. Start at `TurnQueue.enter`.

Files are empty and named NUMBER.STATE.PAIRING. Numbers only grow, so that no clock matters; whoever made a file holds a
lock on it, so that whoever dies, however, is out of the line. Pairings take turns: one that waits in several places has
one place before another's first, and goes behind all that wait when its turn ends.
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
MOST_OF_ONE = 4  # of one pairing
_IDLE, _WAITS, _MEASURES, _SERVED = "idle", "waits", "measures", "served"


class Full(Exception):
    """One line: too many connections are open already."""


class QueuePosition(NamedTuple):
    """`place`: 0 for whose turn it is and for who does not wait, else how many turns away. `measures`: the pairing
    whose turn it is, if any; `waiting`: how many wait."""

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
    """Kept in `folder`, which agents of one board share. Methods raise OSError where files cannot be made there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(0o700, parents=True, exist_ok=True)

    def enter(self, pairing: str) -> QueueEntry:
        """A connection that does not wait yet. Raises Full."""
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
        """Nobody else changes anything meanwhile."""
        lock = os.open(str(self._folder / "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def entries(self) -> list[_Entry]:
        """Who is there, and when pairings were served last. Whoever is gone is taken out first."""
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
        """Give an entry another state, and the next number."""
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
    """One connection's place. A context manager: it leaves at the end, as it does when its process dies."""

    def __init__(self, line: TurnQueue, entry: _Entry, lock: int) -> None:
        self._line, self._entry, self._lock = line, entry, lock
        self.pairing = entry.pairing

    def __enter__(self) -> QueueEntry:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)  # whoever looks next takes it out

    def log(self, text: str) -> None:
        print(f"{self.pairing}'s {text}", file=sys.stderr, flush=True)

    def wait(self) -> None:
        """Behind all that wait now."""
        with self._line.locked():
            self._entry = self._line.change(self._entry, _WAITS, self._line.entries())

    def rest(self) -> None:
        """Neither wait nor measure any more."""
        with self._line.locked():
            if self._entry.state == _MEASURES:
                self._line.note_served(self.pairing, self._line.entries())
            self._entry = self._line.change(self._entry, _IDLE, self._line.entries())

    def look(self) -> QueuePosition:
        """How things stand. Who waits, is first and finds the board free has the turn from then on."""
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
        """Have the turn without waiting for it, if nobody else does either."""
        with self._line.locked():
            entries = self._line.entries()
            if any(e.state in (_WAITS, _MEASURES) for e in entries):
                return False
            self._entry = self._line.change(self._entry, _MEASURES, entries)
            return True


class Alone:
    """In the place of a Visitor where nobody else can come."""

    def log(self, text: str) -> None:
        """Nothing: nobody else would read it."""

    def wait(self) -> None:
        """Nothing to do."""

    def rest(self) -> None:
        """Nothing to do."""

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
    """Who waits, by round, then by the later of when it came and when its pairing was served."""
    served = {e.pairing: e.number for e in entries if e.state == _SERVED}
    rounds = Counter(e.pairing for e in entries if e.state == _MEASURES)
    keyed = []
    for entry in sorted(e for e in entries if e.state == _WAITS):
        keyed.append((rounds[entry.pairing], max(entry.number, served.get(entry.pairing, 0)), entry))
        rounds[entry.pairing] += 1
    return [entry for _, _, entry in sorted(keyed)]
