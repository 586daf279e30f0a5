"""Keeps the boards that this host is paired with: a folder for each, with its address, both certificates and its
faults. Start at `Boards`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from board_agent.keys import NAME
from board_agent.parsing import parse_json
from tuner.errors import BadInput

_ADDRESS, _OURS, _THEIRS, _FAULTS = "board.json", "host.pem", "board.pem", "faults.json"
MOST_FAULTS = 5  # so many within FAULT_SECONDS, and the last one begins a quarantine of QUARANTINE_SECONDS
FAULT_SECONDS, QUARANTINE_SECONDS = 600.0, 300.0


@dataclass(frozen=True)
class Board:
    """A board that this host is paired with. `pairing` is what the board calls this host's pairing. `ours` is this
    host's certificate and key, and `theirs` is the board's certificate."""

    name: str
    address: str
    port: int
    pairing: str
    ours: Path
    theirs: Path

    @property
    def title(self) -> str:
        """Return the board's name, address and port, for a person."""
        return f"{self.name} ({self.address}:{self.port})"


@dataclass(frozen=True)
class Record:
    """The faults that a board had of late. `faults` counts those in all runs of this host. `quarantine` is how many
    seconds are left of its quarantine."""

    faults: int = 0
    quarantine: float = 0.0

    def __str__(self) -> str:
        """Describe the record, such as "in quarantine for 240 s, after 5 faults"."""
        many = f"{self.faults} fault{'' if self.faults == 1 else 's'}"
        return f"in quarantine for {self.quarantine:.0f} s, after {many}" if self.quarantine else many


class Boards:
    """The boards that are kept in `folder` (default: the user's configuration). `clock` gives the date in seconds,
    because faults are remembered from run to run."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = folder or base / "edgetune" / "boards"

    def __iter__(self) -> Iterator[Board]:
        """Yield the boards in the order of their names."""
        for path in sorted(self._folder.glob(f"*/{_ADDRESS}")):
            yield self[path.parent.name]

    def __getitem__(self, name: str) -> Board:
        """Return the board of a name. Raises BadInput for a board that is not known, or whose files cannot be read."""
        place = self._folder / check_name(name)
        try:
            known = parse_json((place / _ADDRESS).read_text())
            return Board(
                name, str(known["address"]), int(known["port"]), str(known["pairing"]), place / _OURS, place / _THEIRS
            )
        except FileNotFoundError:
            names = ", ".join(path.parent.name for path in sorted(self._folder.glob(f"*/{_ADDRESS}"))) or "none"
            raise BadInput(
                f"no board is named {name!r} (known: {names}): `tune board pair {name}` makes one known"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{place / _ADDRESS}: cannot be read ({error}): pair the board again") from error

    def add(self, name: str, address: str, port: int, pairing: str, ours: bytes, theirs: bytes) -> Board:
        """Keep a board, in place of any other of that name."""
        place = self._folder / check_name(name)
        place.mkdir(parents=True, exist_ok=True)
        known = json.dumps({"address": address, "port": port, "pairing": pairing}).encode()
        for part, content in ((_OURS, ours), (_THEIRS, theirs), (_ADDRESS, known)):
            made = place / f"{part}.new"
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            made.replace(place / part)
        self.forgive(name)
        return self[name]

    def note_fault(self, name: str) -> None:
        """Note that the board went away while it was measuring for this host."""
        self._write_faults(name, [*self._faults(name), self._clock()])

    def forgive(self, name: str, count: int | None = None) -> None:
        """Forget the last `count` faults of a board (None: all)."""
        self._write_faults(name, self._faults(name)[:-count] if count else [])

    def record(self, name: str) -> Record:
        """Return what there is to say of a board's faults now."""
        faults = self._faults(name)
        if len(faults) < MOST_FAULTS:
            return Record(len(faults))
        return Record(len(faults), max(0.0, faults[-1] + QUARANTINE_SECONDS - self._clock()))

    def _faults(self, name: str) -> list[float]:
        """Return when a board's last faults were. Faults with a date in the future are left out: the clock was set
        since."""
        path, now = self._folder / name / _FAULTS, self._clock()
        known = [float(when) for when in parse_json(path.read_text())] if path.exists() else []
        return [when for when in known if now - FAULT_SECONDS < when <= now]

    def _write_faults(self, name: str, faults: list[float]) -> None:
        path = self._folder / name / _FAULTS
        if not path.parent.is_dir():  # forgotten meanwhile
            return
        made = path.with_name(f"{_FAULTS}.{os.getpid()}")
        made.write_text(json.dumps(faults))
        made.replace(path)

    def forget(self, name: str) -> None:
        """Remove a board. Raises BadInput for a board that is not known."""
        shutil.rmtree(self[name].ours.parent)


def check_name(name: str) -> str:
    """Return `name`. Raises BadInput if it cannot name a board."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a board's name: use lower-case letters, digits and hyphens")
    return name
