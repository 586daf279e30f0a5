"""Trials as JSON lines: one self-describing record a line, so that logs may be cut, joined and sorted like any text.

`write` exports, `read` gives what it can and the rest by line number; `importing` adds that to a database. Files may be
compressed (gzip, xz): `write_file` goes by the name, `opened` by the content. Of a file that was cut anywhere all that
came before is read.
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
# What a compressed file that was cut or damaged raises.
MOST_LINE_BYTES = 1 << 24  # of a record, which has some thousand: a small compressed file can hold a line of gigabytes
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)

# From a line's JSON value to a trial: `rows.from_record`, or another tuner's format. Raises DatabaseError.
Decode = Callable[[Any, dict[str, Any] | None], Trial]


@dataclass(frozen=True)
class BadLine:
    """A line that is no trial: its number, from 1, and why."""

    number: int
    reason: str


def line_of(trial: Trial) -> str:
    """The trial's line, without the newline: ASCII, the same text for equal trials."""
    return canonical_json(to_record(trial))


def trial_of(line: str | bytes, known: dict[str, Any] | None = None, decode: Decode = from_record) -> Trial:
    """Raises DatabaseError, saying why, if the line is not a trial. `known`: see rows.from_record."""
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
    """What every line holds; empty lines, and comments after a #, are skipped. Where a compressed log (see `opened`)
    cannot be read on, that is its last line, a bad one."""
    known: dict[str, Any] = {}
    number = 0
    try:
        for number, raw in enumerate(lines, 1):
            if len(raw) > MOST_LINE_BYTES:
                yield BadLine(number, f"it is longer than {MOST_LINE_BYTES >> 20} MiB")
                continue
            line = raw.removeprefix(BOM_UTF8)  # with which some editors begin a file
            if (text := line.strip()) and not text.startswith(b"#"):
                try:
                    yield trial_of(line, known, decode)
                except DatabaseError as error:
                    yield BadLine(number, str(error))
    except DAMAGE as error:
        yield BadLine(number + 1, f"the compressed file cannot be read from here on: {error}")


@contextmanager
def opened(path: Path) -> Generator[Iterator[bytes], None, None]:
    """The lines of a log, plain or compressed with gzip or xz. Raises OSError if it cannot be read; reading lines of a
    compressed file that was cut or damaged ends in the error of its library, which `read` knows."""
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
    """The file's own lines would leave out the last one where the file was cut, and that may be a whole record. Of one
    that is too long only the begin is kept."""
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
    """Write one line a trial and return how many."""
    count = 0
    for trial in trials:
        out.write(line_of(trial) + "\n")
        count += 1
    return count


def write_file(trials: Iterable[Trial], path: Path) -> int:
    """`write` to a file that appears only when it is complete, compressed if it is named .gz or .xz: the same bytes
    for the same trials. Raises OSError if it cannot be written."""
    with ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(whole_file(str(path)))
        if path.suffix == ".gz":  # without the name and the time of writing, which gzip would keep
            file = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
        elif path.suffix == ".xz":
            file = cast(IO[bytes], stack.enter_context(lzma.LZMAFile(file, "wb")))
        out = io.TextIOWrapper(file, encoding="ascii", newline="\n")
        count = write(trials, out)
        out.flush()
        out.detach()  # what is below closes by itself
    return count
