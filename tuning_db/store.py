"""This module holds the tuning database: `open_db(url)` returns a `Store` of trials. Start at `Store`.

SQLite is the default, PostgreSQL serves a team. Trials are only ever added, and marked afterwards (trial_flags.py).
`begin` writes candidates into a journal before they are measured. `add` commits a trial and takes it out of the
journal in one transaction. So a kill at any moment loses no committed trial, and `in_flight` still lists what was being
measured. Many processes may write at the same time. A forked child must not use its parent's Store: open another one.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Float,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.expression import FromClause

from board_agent.parsing import parse_json
from tuning_db import bulk, interrupts, schema
from tuning_db.connect import (
    BUSY_SECONDS,
    Location,
    check_file,
    explain,
    is_users_problem,
    locate,
    make_engine,
    remove_if_unused,
)
from tuning_db.errors import DatabaseError
from tuning_db.keys import Ids, Keys, insert_into
from tuning_db.record import Config, DeviceKey, FailureKind, Trial, Workload, tolerance_of
from tuning_db.rows import Batch, batches, from_row, microseconds, moment, to_row

_log = logging.getLogger(__name__)

__all__ = ["AGAIN", "DatabaseError", "InFlight", "Stats", "Store", "open_db"]

AGAIN = "/again"
_BATCH = 5000
_SILENT = [str(kind) for kind in FailureKind if not kind.tells_of_config]  # an earlier trial stays valid


@dataclass(frozen=True)
class InFlight:
    """A config whose measurement began and did not end.

    `owner` is HOST:PID of the process that began it. AGAIN is appended where an earlier process may have died while it
    measured the same config, so that this measurement is a repetition.
    """

    workload: Workload
    device: DeviceKey
    config: Config
    owner: str
    started: datetime


@dataclass(frozen=True)
class Stats:
    """Numbers of records that a database holds. Workloads and devices are counted if they have at least one trial."""

    trials: int
    failures: int
    failures_by_kind: Mapping[str, int]
    workloads: int
    devices: int
    in_flight: int


def open_db(url_or_path: str | Path, create: bool = True, read_only: bool = False) -> Store:
    """Open a database: a path or sqlite:///PATH, or postgresql://USER@HOST/NAME. Close the store, or use it in `with`.

    With `create`, a missing database is created. With `read_only`, nothing is created or changed. Raises DatabaseError
    if the file is not a tuning database, is truncated, has a newer schema, or cannot be read or written. A file that is
    refused is left unchanged.
    """
    location = locate(url_or_path)
    exists_already = location.path is None or check_file(location.path, create, read_only)
    store = Store(make_engine(location, read_only), location)
    try:
        store._bring_up_to_date(read_only)
    except BaseException:
        store.close()
        if location.path is not None and not exists_already:
            remove_if_unused(location.path)
        raise
    _log.info("opened the tuning database %s%s", store.name, ", which is not to be written" if read_only else "")
    return store


def counts_for_best(trials: FromClause, tolerance: float | ColumnElement[float]) -> ColumnElement[bool]:
    """Return the SQL condition under which a trial may be the best of its workload and device.

    The trial succeeded, was verified within `tolerance`, is not outdated by a later trial of the same config, and its
    config is not withdrawn. A later trial outdates it if it was verified too (with any result), or if it failed by the
    config's own fault. The order of insertion decides which trial is later, not the date: the verdict of a machine
    whose clock is ahead would otherwise be permanent.
    """
    later = schema.trials.alias()
    verdict = or_(later.c.error.is_not(None), later.c.failure_kind.not_in(_SILENT))
    same = and_(*(later.c[n] == trials.c[n] for n in ("workload_id", "device_id", "config_digest", "config")))
    withdrawn = later.c.failure_kind == str(FailureKind.WITHDRAWN)
    outdated = exists(select(1).where(same, or_(and_(later.c.id > trials.c.id, verdict), withdrawn)).correlate(trials))
    return and_(trials.c.failure_kind.is_(None), trials.c.error <= tolerance, ~outdated)


@cache
def _best_query() -> Select[Any]:
    """Return the query of `Store.best`. It is built once, because building it takes longer than running it."""
    t, w, d = schema.trials, schema.workloads, schema.devices
    here = (
        t.c.workload_id == select(w.c.id).where(w.c.key == bindparam("workload")).scalar_subquery(),
        t.c.device_id == select(d.c.id).where(d.c.key == bindparam("device")).scalar_subquery(),
    )
    valid = counts_for_best(t, bindparam("tolerance", type_=Float))
    return select(t).where(*here, t.c.seconds.is_not(None), valid).order_by(t.c.seconds, t.c.id)


class Store:
    """A database that holds trials of many workloads on many devices. `open_db` creates it.

    Every method raises DatabaseError if the database cannot be read or written (full disk, damage, a lock held for too
    long). What was committed before stays. A record that cannot be read, for example because another program wrote it,
    is left out. `unreadable` collects the ids of such records, and `tune db verify` says what is wrong with them.
    """

    def __init__(self, engine: Engine, location: Location) -> None:
        self._engine = engine
        self._writer = engine.execution_options(writes=True)
        self.name = location.name
        self.path = location.path
        self.unreadable: set[int] = set()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database, whatever other processes write meanwhile."""
        with self._explained(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end of the block and rolled back by an exception.

        Ctrl-C takes effect only at its end.
        """
        with interrupts.held(), self._explained(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:  # a damaged text column, or an SQLite message that quotes a damaged name
            raise explain(sqlite3.DatabaseError("database disk image is malformed"), self.name) from error
        except (SQLAlchemyError, sqlite3.Error) as error:
            if isinstance(error, SQLAlchemyError) and not is_users_problem(error):
                raise
            raise explain(error, self.name) from error

    def _bring_up_to_date(self, read_only: bool) -> None:
        with self.reading() as connection:
            revision = schema.revision_of(connection)
        self._refuse_newer(revision)
        if revision == schema.REVISIONS[-1] or (read_only and revision is not None):
            return  # only writers need what later revisions added
        if read_only:
            raise DatabaseError(f"{self.name} is empty: open it once for writing")
        if self.path is not None:
            self._use_write_ahead_log()
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":  # where two first users come at once, the second waits here
                connection.execute(select(func.pg_advisory_xact_lock(schema.APPLICATION_ID)))
            revision = schema.revision_of(connection)
            self._refuse_newer(revision)
            schema.upgrade(connection)

    def _refuse_newer(self, revision: str | None) -> None:
        if revision is not None and revision not in schema.REVISIONS:
            raise DatabaseError(
                f"{self.name} was written by a newer edgetune (schema {revision}): upgrade edgetune, or choose another"
            )

    def _outside_transaction(self, statement: str) -> None:
        with self._explained(), closing(self._engine.raw_connection()) as connection:
            connection.cursor().execute(statement).fetchall()

    def _use_write_ahead_log(self) -> None:
        """Switch the SQLite file to write-ahead logging. The mode is stored in the file.

        SQLite does not wait for other connections when the mode changes, so this method does.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._outside_transaction("PRAGMA journal_mode = WAL")
                return
            except DatabaseError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    # Writing

    def begin(
        self,
        workload: Workload,
        device: DeviceKey,
        configs: Sequence[Config],
        started: datetime | None = None,
        again: bool = False,
    ) -> None:
        """Note in the journal, with one commit, that these configs are about to be measured.

        `started` is the time of the first config (now by default). Each following config gets a time one microsecond
        later. `again` marks the entries as repetitions, see InFlight.
        """
        started_us = microseconds(started or datetime.now(UTC))
        owner = f"{platform.node()}:{os.getpid()}{AGAIN if again else ''}"
        with self.writing() as connection:
            ids = Ids(connection).of(workload, device)
            # The order of the keys keeps two processes that insert the same configs from a deadlock.
            by_key = sorted(enumerate(configs, started_us), key=lambda pair: pair[1].key)
            rows = [{**ids, "config": c.key, "owner": owner, "started": when} for when, c in by_key]
            if rows:
                insert = insert_into(connection, schema.in_flight)
                keys = [schema.in_flight.c[n] for n in ("workload_id", "device_id", "config")]
                update = {"owner": insert.excluded.owner, "started": insert.excluded.started}
                connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=update), rows)

    def add(self, trial: Trial) -> bool:
        """Commit one trial and take it out of the journal. Return False if the same trial was stored already."""
        return self.add_together([trial])[0]

    def add_together(self, trials: Sequence[Trial]) -> list[bool]:
        """Add several trials as `add` does, with one commit, which takes as long as the commit of a single trial.

        Return for each trial whether it was new.
        """
        with self.writing() as connection:
            ids = Ids(connection)
            return [self._add(connection, to_row(t), ids.of(t.workload, t.device)) for t in trials]

    def _add(self, connection: Connection, row: dict[str, Any], ids: dict[str, int]) -> bool:
        insert = insert_into(connection, schema.trials).on_conflict_do_nothing().returning(schema.trials.c.id)
        added = connection.scalar(insert, {**row, **ids}) is not None
        journal = schema.in_flight.c
        connection.execute(
            delete(schema.in_flight).where(
                journal.workload_id == ids["workload_id"],
                journal.device_id == ids["device_id"],
                journal.config == row["config"],
            )
        )
        return added

    def add_many(self, trials: Iterable[Trial]) -> int:
        """Commit trials in batches and return how many were new. This is for imports: the journal stays as it is."""
        return self.add_batches(batches(trials, _BATCH))

    def add_batches(self, made: Iterable[Batch]) -> int:
        """Commit batches of rows as `add_many` does. The database stores one batch while the next one is prepared."""
        added, waiting = 0, None
        with ThreadPoolExecutor(1) as writer:
            for batch in made:
                added += waiting.result() if waiting else 0
                waiting = writer.submit(self._add_batch, batch)
            return added + (waiting.result() if waiting else 0)

    def _add_batch(self, batch: Batch) -> int:
        with self.writing() as connection:
            bulk.lock_out_other_importers(connection)
            ids = Ids(connection)
            ids.add((workload, device) for _, workload, device in batch)
            for row, workload, device in batch:
                row.update(ids.of(workload, device))
            return bulk.insert_trials(connection, [row for row, _, _ in batch])

    def abandon(self, entries: Iterable[InFlight]) -> None:
        """Take interrupted entries out of the journal without adding a trial, so that they may be measured again."""
        with self.writing() as connection:
            ids = Ids(connection)
            for entry in entries:
                where = {**ids.of(entry.workload, entry.device), "config": entry.config.key, "owner": entry.owner}
                connection.execute(
                    delete(schema.in_flight).where(*(schema.in_flight.c[n] == v for n, v in where.items()))
                )

    def compact(self) -> None:
        """Give the space of removed trials back to the disk. Only SQLite needs this: PostgreSQL does it by itself."""
        if self.path is not None:
            self._outside_transaction("VACUUM")

    # Reading

    def trials(
        self,
        workload: Workload | None = None,
        device: DeviceKey | None = None,
        family: str | None = None,
        ok: bool | None = None,
    ) -> Iterator[Trial]:
        """Yield all trials that meet every given criterion, in the order in which they were added.

        `ok` is True for successful trials only, and False for failures only.
        """
        t, w, d = schema.trials, schema.workloads, schema.devices
        query = select(t, w.c.key.label("workload_key"), d.c.key.label("device_key")).join(w).join(d).order_by(t.c.id)
        if workload is not None:
            query = query.where(w.c.key == workload.key)
        if device is not None:
            query = query.where(d.c.key == device.key)
        if family is not None:
            query = query.where(d.c.family == family)
        if ok is not None:
            query = query.where(t.c.failure_kind.is_(None) if ok else t.c.failure_kind.is_not(None))
        decode = Keys()
        with self.reading() as connection:
            for row in connection.execution_options(yield_per=1000).execute(query):
                try:
                    trial = from_row(row, decode.workload(row.workload_key), decode.device(row.device_key))
                except DatabaseError:
                    self.unreadable.add(row.id)
                else:
                    yield trial

    def best(
        self,
        workload: Workload,
        device: DeviceKey,
        tolerance: float | None = None,
        usable: Callable[[Trial], bool] | None = None,
    ) -> Trial | None:
        """Return the fastest trial whose verified error is at most `tolerance`, or None.

        By default `tolerance` is what the workload's dtype allows. Of several trials of a config, the one that was
        added last counts, among those that were verified or failed by the config's own fault. No trial of a withdrawn
        config counts. A trial that is marked as throttled is returned only where there is no other. `usable` refuses
        single trials, such as those of an outdated template version or of a forbidden template.
        """
        allowed = tolerance_of(workload.dtype) if tolerance is None else tolerance
        wanted = {"workload": workload.key, "device": device.key, "tolerance": allowed}
        throttled = None
        with self.reading() as connection:
            for row in connection.execution_options(yield_per=10).execute(_best_query(), wanted):
                try:
                    trial = from_row(row, workload, device)
                except DatabaseError:
                    self.unreadable.add(row.id)
                    continue
                if usable is None or usable(trial):
                    if not trial.throttled:
                        return trial
                    throttled = throttled or trial
        return throttled

    def in_flight(self) -> list[InFlight]:
        """Return the journal: measurements that began and did not end, oldest first.

        They include those that another process is still working on.
        """
        j, w, d = schema.in_flight, schema.workloads, schema.devices
        query = select(j, w.c.key.label("workload_key"), d.c.key.label("device_key")).join(w).join(d).order_by(j.c.id)
        decode = Keys()
        with self.reading() as connection:
            return [
                InFlight(
                    decode.workload(row.workload_key),
                    decode.device(row.device_key),
                    Config.from_dict(parse_json(row.config)),
                    row.owner,
                    moment(row.started),
                )
                for row in connection.execute(query)
            ]

    def workloads(self, device: DeviceKey | None = None) -> list[Workload]:
        """Return the workloads with at least one trial (on `device`), in the order in which they were first stored."""
        w, t, d = schema.workloads, schema.trials, schema.devices
        has = select(1).where(t.c.workload_id == w.c.id)
        if device is not None:
            has = has.where(t.c.device_id == select(d.c.id).where(d.c.key == device.key).scalar_subquery())
        with self.reading() as connection:
            keys = connection.scalars(select(w.c.key).where(exists(has.correlate(w))).order_by(w.c.id)).all()
        return Keys().readable_workloads(keys)

    def devices(self, kind: str | None = None, family: str | None = None) -> list[DeviceKey]:
        """Return the devices with at least one trial, in the order in which they were first stored.

        `kind` and `family` restrict them where they are given.
        """
        d, t, w = schema.devices, schema.trials, schema.workloads
        # The query joins workloads, because both indices of `trials` begin with the workload.
        has = select(1).select_from(w.join(t)).where(t.c.device_id == d.c.id).correlate(d)
        query = select(d.c.key).where(exists(has)).order_by(d.c.id)
        if kind is not None:
            query = query.where(d.c.kind == kind)
        if family is not None:
            query = query.where(d.c.family == family)
        with self.reading() as connection:
            keys = connection.scalars(query).all()
        return Keys().readable_devices(keys)

    def stats(self) -> Stats:
        t = schema.trials
        with self.reading() as connection:
            rows = connection.execute(select(t.c.failure_kind, func.count()).group_by(t.c.failure_kind)).all()
            waiting = connection.scalar(select(func.count()).select_from(schema.in_flight)) or 0
        by_kind = {kind: count for kind, count in sorted(rows, key=lambda r: str(r[0])) if kind is not None}
        return Stats(
            trials=sum(count for _, count in rows),
            failures=sum(by_kind.values()),
            failures_by_kind=by_kind,
            workloads=len(self.workloads()),
            devices=len(self.devices()),
            in_flight=waiting,
        )
