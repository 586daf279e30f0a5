"""This module writes and reads logs: trials as JSON lines, one self-describing record a line.

Logs may be cut, joined and sorted like any text. `write` exports trials. `read` yields trials, and reports lines that
cannot be read by their numbers. tuning_db.importing adds a log to a database. Files may be compressed (gzip, xz):
`write_file` chooses by the name, `opened` by the content. A file that was cut is read up to the cut.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from board_agent.disk import whole_file
from tuning_db.errors import DatabaseError
from tuning_db.record import Trial, canonical_json
from tuning_db.rows import from_record, to_record

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\0"
_CHUNK_BYTES = 1 << 16
# A record has some thousand bytes. The limit is needed because a small compressed file can hold a line of gigabytes.
MOST_LINE_BYTES = 1 << 24
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)  # raised for a compressed file that is cut or damaged

# Turns the JSON value of a line into a trial: `rows.from_record`, or a decoder of another tuner's format. It raises
# DatabaseError.
Decode = Callable[[Any, dict[str, Any] | None], Trial]


@dataclass(frozen=True)
class BadLine:
    """A line that is no trial: its number, counted from 1, and the reason."""

    number: int
    reason: str


def line_of(trial: Trial) -> str:
    """Return the trial's line without the newline. It is ASCII, and equal trials have equal lines."""
    return canonical_json(to_record(trial))


def trial_of(line: str | bytes, known: dict[str, Any] | None = None, decode: Decode = from_record) -> Trial:
    """Parse the trial of a line. `known` is the cache of rows.from_record.

    Raises DatabaseError with the reason if the line is not a trial.
    """
    try:
        text = line.decode() if isinstance(line, bytes) else line  # json would guess other encodings
        data = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise DatabaseError("it is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"it is not JSON: {error}") from error
    return decode(data, known)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def read(lines: Iterable[bytes], decode: Decode = from_record) -> Iterator[Trial | BadLine]:
    """Yield the trial of every line, or a BadLine. Empty lines and lines that begin with # are skipped.

    Where a compressed log (see `opened`) is damaged, a BadLine for the rest of it comes last.
    """
    known: dict[str, Any] = {}
    number = 0
    try:
        for number, raw in enumerate(lines, 1):
            if len(raw) > MOST_LINE_BYTES:
                yield BadLine(number, f"it is longer than {MOST_LINE_BYTES >> 20} MiB")
                continue
            line = raw.removeprefix(BOM_UTF8)  # some editors begin a file with it
            if (text := line.strip()) and not text.startswith(b"#"):
                try:
                    yield trial_of(line, known, decode)
                except DatabaseError as error:
                    yield BadLine(number, str(error))
    except DAMAGE as error:
        yield BadLine(number + 1, f"the compressed file cannot be read from here on: {error}")


@contextmanager
def opened(path: Path) -> Generator[Iterator[bytes], None, None]:
    """Open a log, plain or compressed with gzip or xz, and give its lines.

    Raises OSError if it cannot be read. Iterating over the lines of a compressed file that was cut or damaged raises
    one of DAMAGE, which `read` handles.
    """
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        head = file.peek(len(_XZ))
        if head.startswith(_GZIP):
            yield _lines(stack.enter_context(gzip.GzipFile(fileobj=file)))
        elif head.startswith(_XZ):
            yield _lines(stack.enter_context(lzma.LZMAFile(file)))
        else:
            yield _lines(file)


def _lines(file: IO[bytes] | gzip.GzipFile | lzma.LZMAFile) -> Iterator[bytes]:
    """Split a file into lines, without their newlines.

    Iterating over the file itself would lose the last line before a cut, which may be a whole record. Of a line that is
    too long only the beginning is kept, one byte more than MOST_LINE_BYTES.
    """
    parts: list[bytes] = []
    size = 0
    try:
        while chunk := file.read1(_CHUNK_BYTES):  # type: ignore[union-attr]
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield b"".join([*parts, end])[: MOST_LINE_BYTES + 1]
                parts, size = [], 0
            if rest and size <= MOST_LINE_BYTES:
                parts.append(rest)
                size += len(rest)
    except DAMAGE:
        if parts:
            yield b"".join(parts)[: MOST_LINE_BYTES + 1]
        raise
    if parts:
        yield b"".join(parts)[: MOST_LINE_BYTES + 1]


def write(trials: Iterable[Trial], out: IO[str]) -> int:
    """Write one line per trial and return how many were written."""
    count = 0
    for trial in trials:
        out.write(line_of(trial) + "\n")
        count += 1
    return count


def write_file(trials: Iterable[Trial], path: Path) -> int:
    """Write trials to a file that appears only when it is complete, and return how many were written.

    The file is compressed if its name ends in .gz or .xz. The same trials give the same bytes. Raises OSError if it
    cannot be written.
    """
    with ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(whole_file(str(path)))
        if path.suffix == ".gz":  # without the name and the time of writing, which gzip would store
            file = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
        elif path.suffix == ".xz":
            file = cast(IO[bytes], stack.enter_context(lzma.LZMAFile(file, "wb")))
        out = io.TextIOWrapper(file, encoding="ascii", newline="\n")
        count = write(trials, out)
        out.flush()
        out.detach()  # the stack closes the file below
    return count
