"""Trials as JSON lines: one self-describing record a line, so that logs may be cut, joined and sorted like any text.

`write` exports, `import_log` imports what it can and reports the rest by line number; importing twice adds nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from tuning_db.errors import DatabaseError
from tuning_db.record import Trial, canonical_json
from tuning_db.rows import from_record, to_record
from tuning_db.store import Store

# From a line's JSON value to a trial: `rows.from_record`, or another tuner's format. Raises DatabaseError.
Decode = Callable[[Any, dict[str, Any] | None], Trial]


@dataclass(frozen=True)
class BadLine:
    """A line that is no trial: its number, from 1, and why."""

    number: int
    reason: str


@dataclass
class ImportReport:
    added: int = 0
    known: int = 0  # were in the database already
    bad: list[BadLine] = field(default_factory=list)


def line_of(trial: Trial) -> str:
    """The trial's line, without the newline: ASCII, the same text for equal trials."""
    return canonical_json(to_record(trial))


def trial_of(line: str | bytes, known: dict[str, Any] | None = None, decode: Decode = from_record) -> Trial:
    """Raises DatabaseError, saying why, if the line is not a trial. `known`: see rows.from_record."""
    try:
        text = line.decode() if isinstance(line, bytes) else line  # json would guess other encodings
        data = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DatabaseError("it is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"it is not JSON: {error}") from error
    return decode(data, known)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def read(lines: Iterable[bytes], decode: Decode = from_record) -> Iterator[Trial | BadLine]:
    """What every line holds; empty lines, and comments after a #, are skipped."""
    known: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        if (text := line.strip()) and not text.startswith(b"#"):
            try:
                yield trial_of(line, known, decode)
            except DatabaseError as error:
                yield BadLine(number, str(error))


def write(trials: Iterable[Trial], out: IO[str]) -> int:
    """Write one line a trial and return how many."""
    count = 0
    for trial in trials:
        out.write(line_of(trial) + "\n")
        count += 1
    return count


def write_file(trials: Iterable[Trial], path: Path) -> int:
    """`write` to a file that appears only when it is complete. Raises OSError if it cannot be written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="ascii", newline="\n") as out:
            count = write(trials, out)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def import_log(store: Store, lines: Iterable[bytes], decode: Decode = from_record) -> ImportReport:
    """Add every trial of the log that is not there yet. As `import_all`."""
    return import_all(store, read(lines, decode))


def import_all(store: Store, items: Iterable[Trial | BadLine]) -> ImportReport:
    """Add every trial that is not there yet.

    Raises DatabaseError if the database cannot take them; what was committed until then stays, and importing again
    adds the rest.
    """
    report = ImportReport()
    count = 0

    def good() -> Iterator[Trial]:
        nonlocal count
        for item in items:
            if isinstance(item, BadLine):
                report.bad.append(item)
            else:
                count += 1
                yield item

    report.added = store.add_many(good())
    report.known = count - report.added
    return report
