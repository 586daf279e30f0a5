"""This module turns a path or URL into a SQLAlchemy engine, and a driver's error into one clear line.

Start at `locate`, which parses what the user gave. `check_file` checks an SQLite file without changing it, and
`make_engine` makes the engine. `explain` turns a driver's error into a DatabaseError.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from tuning_db import interrupts
from tuning_db.errors import DatabaseError
from tuning_db.schema import APPLICATION_ID

BUSY_SECONDS = 30.0  # how long a writer waits for another writer
_LOOK_SECONDS = (0.001, 0.01)  # shortest and longest pause between two attempts to get the writer's lock
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_OTHER = "choose another with --db"


@dataclass(frozen=True)
class Location:
    """The place where a database is. `path` is set for SQLite, `url` for PostgreSQL.

    `name` is used in messages and contains no password.
    """

    name: str
    path: Path | None = None
    url: URL | None = None


def locate(url_or_path: str | Path) -> Location:
    """Parse a path or URL. A bare path means an SQLite file.

    Raises DatabaseError for any URL except sqlite:///PATH and postgresql://...
    """
    text = os.fspath(url_or_path)
    if "://" not in text:
        return _file(text, text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise DatabaseError(f"the database URL {text!r} cannot be parsed") from error
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _file(url.database or "", text)
    if backend not in ("postgresql", "postgres"):
        raise DatabaseError(
            f"{backend}:// is not supported as a tuning database: use a path, sqlite:/// or postgresql://"
        )
    return Location(url.render_as_string(hide_password=True), url=url.set(drivername="postgresql+psycopg"))


def _file(path: str, text: str) -> Location:
    if not path or "\0" in path or path == ":memory:":
        raise DatabaseError(f"{text!r} does not name a database file: give a path such as tuning.db")
    return Location(path, path=Path(path))


def check_file(path: Path, create: bool, read_only: bool) -> bool:
    """Raise DatabaseError unless `path` is an SQLite tuning database or can become one.

    Return True if the file exists already. Nothing is written.
    """
    try:
        if not path.exists():
            _check_new(path, create and not read_only)
            return False
        if not path.is_file():
            raise DatabaseError(f"{path} is a folder or device, not a database file: {_OTHER}")
        _check_existing(path, read_only)
        return True
    except OSError as error:
        raise DatabaseError(f"{path} cannot be opened: {error.strerror or error}") from error


def _check_new(path: Path, create: bool) -> None:
    if not create:
        raise DatabaseError(f"there is no tuning database at {path}: tune something first, or choose another with --db")
    if not path.parent.is_dir():
        raise DatabaseError(f"cannot create {path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise DatabaseError(f"cannot create {path}: the folder {path.parent} is read-only; {_OTHER}")


def _check_existing(path: Path, read_only: bool) -> None:
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if header and not header.startswith(_MAGIC[: len(header)]):
        raise DatabaseError(f"{path} is not a tuning database (not an SQLite file): {_OTHER}")
    if header:
        _check_whole(path, header)
        _check_ours(path, header)
    if not read_only and not _writable(path):
        raise DatabaseError(f"{path} is read-only, or its folder is: {_OTHER}")
    if not _writable(path) and _log_bytes(path) and not path.with_name(path.name + "-shm").exists():
        hint = f"copy it and {path.name}-wal to a folder that can be written"
        raise DatabaseError(f"{path} was left by a killed writer and its folder is read-only: {hint}")


def remove_if_unused(path: Path) -> None:
    """Delete a file that was created but not filled, unless another process has filled it or is writing to it."""
    if not path.exists() or _log_bytes(path):
        return
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)  # the write-ahead log lies beside the file


def _log_bytes(path: Path) -> int:
    log = path.with_name(path.name + "-wal")
    return log.stat().st_size if log.exists() else 0


def _check_whole(path: Path, header: bytes) -> None:
    """Raise DatabaseError if the file has fewer pages than its header says, as after an interrupted copy.

    Where a write-ahead log exists, missing pages may still be in it, so the file is accepted.
    """
    page_bytes = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    actual = path.stat().st_size
    if len(header) < _HEADER_BYTES or (actual < expected and not _log_bytes(path)):
        size = f"{actual} of {expected} bytes" if expected else f"{actual} bytes"
        raise DatabaseError(f"{path} is truncated ({size}): restore it from a copy, or {_OTHER}")


def _check_ours(path: Path, header: bytes) -> None:
    """Raise DatabaseError for an SQLite file of another program.

    A file without tables is accepted: it may be a tuning database whose creation was interrupted.
    """
    if int.from_bytes(header[68:72], "big") == APPLICATION_ID:
        return
    # Immutable: a plain read of a file in WAL mode would leave a -wal and a -shm beside it.
    query = "mode=ro" if _log_bytes(path) else "mode=ro&immutable=1"
    try:
        with closing(_connect(path, query)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise explain(error, str(path)) from error
    if tables and not {"alembic_version", "trials"} <= tables:
        raise DatabaseError(f"{path} is an SQLite database, but not a tuning database: {_OTHER}")


def _connect(path: Path, query: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?{query}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # `_begin` issues BEGIN: the driver would issue it late and never as IMMEDIATE
        check_same_thread=False,
    )


def make_engine(location: Location, read_only: bool) -> Engine:
    """Make the engine without opening a connection.

    Raises DatabaseError where the driver for PostgreSQL is not installed.
    """
    if location.path is None:
        assert location.url is not None
        try:
            return create_engine(location.url, isolation_level="READ COMMITTED")
        except ModuleNotFoundError as error:
            hint = 'pip install "edgetune[postgres]"'
            raise DatabaseError(f"PostgreSQL needs the package {error.name}: {hint}") from error
    engine = create_engine("sqlite://", creator=_creator(location.path, read_only), poolclass=QueuePool)
    event.listen(engine, "begin", _begin)
    return engine


def _creator(path: Path, read_only: bool) -> Callable[[], sqlite3.Connection]:
    def create() -> sqlite3.Connection:
        try:
            return opened()
        except UnicodeDecodeError as error:  # SQLite's message quotes names of a damaged schema
            raise sqlite3.DatabaseError("database disk image is malformed") from error

    def opened() -> sqlite3.Connection:
        if not read_only:
            query = "mode=rwc"
        elif _writable(path):
            query = "mode=rw"  # together with query_only below; unlike mode=ro this leaves no -wal and -shm behind
        else:
            query = "mode=ro" if _log_bytes(path) else "mode=ro&immutable=1"
        connection = _connect(path, query)
        # With FULL a commit survives a power cut. It costs far less time than measuring a trial.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -65536")  # KiB
        connection.execute("PRAGMA wal_autocheckpoint = 8192")  # pages; an import rewrites the same index pages often
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        return connection

    return create


def _begin(connection: Connection) -> None:
    """Begin a transaction. A writer takes the lock at once.

    In SQLite a reader that becomes a writer later cannot wait for another writer, but fails.
    """
    if connection.get_execution_options().get("writes", False):
        driver: Any = connection.connection.driver_connection
        _begin_writing(driver)
    else:
        connection.exec_driver_sql("BEGIN")


def _begin_writing(driver: sqlite3.Connection) -> None:
    """Take the writer's lock and wait for it here rather than in SQLite.

    SQLite tries less and less often the longer it waits, so that one of many writers may never see the lock free. Here
    all writers try equally often, with random pauses so that they do not try in step. Raises
    sqlite3.OperationalError if the lock is still held after BUSY_SECONDS.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                interrupts.pass_on()
                time.sleep(random.uniform(*_LOOK_SECONDS))
    finally:
        driver.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")


_EXPLANATIONS = (
    ("not a database", f"is not a tuning database: {_OTHER}"),
    ("malformed", "is damaged: restore it from a copy, or import its exported log into a new database"),
    ("is full", "cannot grow, its disk is full: free some space (all that was committed is kept)"),
    ("readonly", f"is read-only: {_OTHER}"),
    ("read-only", f"is read-only: {_OTHER}"),
    ("locked", f"is locked by another process, for longer than {BUSY_SECONDS:.0f} seconds"),
)


def explain(error: Exception, name: str) -> DatabaseError:
    """Turn a driver's error into a DatabaseError that tells a user in one line what it means."""
    cause = getattr(error, "orig", None) or error
    reason = " ".join(str(cause).split()) or type(cause).__name__
    if getattr(cause, "sqlite_errorname", "") in ("SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP"):
        reason = "database or disk is full"  # the shared-memory index of the write-ahead log could not grow
    for fragment, meaning in _EXPLANATIONS:
        if fragment in reason:
            return DatabaseError(f"{name} {meaning}")
    return DatabaseError(f"{name} cannot be used: {reason}")


def is_users_problem(error: SQLAlchemyError) -> bool:
    """Return False for errors that only a bug in this package can cause (broken SQL, a violated constraint)."""
    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError | ProgrammingError | DataError)
