"""The boards that this host is paired with: a folder for each, with its address and the two certificates."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from board_agent.keys import NAME
from tuner.errors import BadInput

_ADDRESS, _OURS, _THEIRS = "board.json", "host.pem", "board.pem"


@dataclass(frozen=True)
class Board:
    """`pairing`: what the board calls this host's pairing. `ours`: this host's certificate and key; `theirs`: the
    board's certificate."""

    name: str
    address: str
    port: int
    pairing: str
    ours: Path
    theirs: Path

    @property
    def title(self) -> str:
        return f"{self.name} ({self.address}:{self.port})"


class Boards:
    """Kept in `folder` (default: the user's configuration)."""

    def __init__(self, folder: Path | None = None) -> None:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = folder or base / "edgetune" / "boards"

    def __iter__(self) -> Iterator[Board]:
        """In the order of their names."""
        for path in sorted(self._folder.glob(f"*/{_ADDRESS}")):
            yield self[path.parent.name]

    def __getitem__(self, name: str) -> Board:
        """Raises BadInput for a board that is not known, or whose files cannot be read."""
        place = self._folder / check_name(name)
        try:
            known = json.loads((place / _ADDRESS).read_text())
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
        """Keep a board, in the place of one of that name."""
        place = self._folder / check_name(name)
        place.mkdir(parents=True, exist_ok=True)
        known = json.dumps({"address": address, "port": port, "pairing": pairing}).encode()
        for part, content in ((_OURS, ours), (_THEIRS, theirs), (_ADDRESS, known)):
            made = place / f"{part}.new"
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            made.replace(place / part)
        return self[name]

    def forget(self, name: str) -> None:
        """Raises BadInput for a board that is not known."""
        shutil.rmtree(self[name].ours.parent)


def check_name(name: str) -> str:
    """Raises BadInput for what cannot name a board."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a board's name: use lower-case letters, digits and hyphens")
    return name
