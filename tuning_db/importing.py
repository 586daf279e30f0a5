"""This module imports logs into a database: it adds every trial that the database does not have yet.

Start at `import_log`. `import_all` takes trials that were read elsewhere. Decoding a line into a row takes longer than
inserting the row, so several processes decode a large log.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice

from loky import ProcessPoolExecutor  # Python's own would run the caller's script again in every process

from tuning_db import logs
from tuning_db.errors import DatabaseError
from tuning_db.logs import BadLine, Decode
from tuning_db.record import Trial
from tuning_db.rows import Batch, from_record, to_row
from tuning_db.store import Store

_LINES = 5000  # lines in a chunk
# The least number of trials in a commit, except for the last one. Trials land anywhere in the indices, and a commit of
# many writes each index page once.
_TOGETHER = 20_000
_FEW = 4  # a log of fewer chunks is decoded in this process
_PROCESSES = 4  # more would decode faster than the database can insert


@dataclass
class ImportReport:
    """The result of an import, which counts the new trials and those that were in the database already (`known`).

    `bad` lists the lines that are no trials.
    """

    added: int = 0
    known: int = 0
    bad: list[BadLine] = field(default_factory=list)


def import_log(store: Store, lines: Iterable[bytes], decode: Decode = from_record) -> ImportReport:
    """Add every trial of the log that the database does not have yet.

    Raises DatabaseError if the database cannot store them. What was committed until then stays, and importing again
    adds the rest.
    """
    return _imported(store, _parts(lines, decode))


def import_all(store: Store, items: Iterable[Trial | BadLine]) -> ImportReport:
    """Add trials that were read already, as `import_log` does."""
    left = iter(items)
    return _imported(store, iter(lambda: _part(islice(left, _LINES)), _Part([], [])))


@dataclass(frozen=True)
class _Chunk:
    """A run of lines of a log.

    `before` is the number of lines before it. `damage` is the error that kept the lines after it from being read.
    """

    before: int
    lines: list[bytes]
    damage: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        yield from self.lines
        if self.damage is not None:
            raise self.damage


@dataclass(frozen=True)
class _Part:
    """The decoded content of a chunk, which consists of rows and of the lines that are no trials."""

    batch: Batch
    bad: list[BadLine]


def _imported(store: Store, parts: Iterable[_Part]) -> ImportReport:
    report, count = ImportReport(), 0

    def batches() -> Iterator[Batch]:
        nonlocal count
        batch: Batch = []
        for part in parts:
            report.bad += part.bad
            count += len(part.batch)
            batch += part.batch
            if len(batch) >= _TOGETHER:
                yield batch
                batch = []
        if batch:
            yield batch

    with _without_collector():
        report.added = store.add_batches(batches())
    report.known = count - report.added
    return report


def _chunks(lines: Iterable[bytes]) -> Iterator[_Chunk]:
    before, chunk = 0, list[bytes]()
    damage = None
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == _LINES:
                yield _Chunk(before, chunk)
                before, chunk = before + _LINES, []
    except logs.DAMAGE as error:
        damage = error
    yield _Chunk(before, chunk, damage)


def _parts(lines: Iterable[bytes], decode: Decode) -> Iterator[_Part]:
    """Decode the lines in chunks, in several processes for a large log, and yield the parts in the order of the lines.

    Raises DatabaseError if one of the processes is killed.
    """
    chunks = _chunks(lines)
    first = list(islice(chunks, _FEW))
    processes = min(_PROCESSES, len(os.sched_getaffinity(0)))
    if len(first) < _FEW or processes == 1:
        for chunk in chain(first, chunks):
            yield _decoded(chunk, decode)
        return
    pool = ProcessPoolExecutor(processes, initializer=_start_reader)
    waiting: deque[Future[_Part]] = deque()
    try:
        for chunk in chain(first, chunks):
            waiting.append(pool.submit(_decoded, chunk, decode))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DatabaseError("a process that read the log was killed: import again, which adds the rest") from error
    finally:
        pool.shutdown(kill_workers=True)


def _start_reader() -> None:
    """Set up a decoding process: ignore interrupts and switch the garbage collector off.

    Ctrl-C in a terminal reaches all processes, and the importing one handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


@contextmanager
def _without_collector() -> Generator[None, None, None]:
    """Switch the garbage collector off for the block.

    Records hold no reference cycles, and the search for cycles among so many takes a fifth of an import.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _decoded(chunk: _Chunk, decode: Decode) -> _Part:
    part = _part(logs.read(chunk, decode))
    return _Part(part.batch, [BadLine(chunk.before + bad.number, bad.reason) for bad in part.bad])


def _part(items: Iterable[Trial | BadLine]) -> _Part:
    part = _Part([], [])
    for item in items:
        if isinstance(item, BadLine):
            part.bad.append(item)
        else:
            part.batch.append((to_row(item), item.workload, item.device))
    return part
