"""This module merges databases, prunes them by explicit criteria, and verifies their records.

Start at `merge`, `prune` and `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, delete, exists, false, func, or_, select

from board_agent.parsing import parse_json
from tuning_db import schema
from tuning_db.errors import DatabaseError
from tuning_db.record import DeviceKey, FailureKind, Trial, Workload, tolerance_of
from tuning_db.rows import from_row, microseconds, to_row
from tuning_db.store import Store, counts_for_best
from tuning_db.trial_flags import is_throttled


@dataclass(frozen=True)
class Merged:
    """The result of a merge, which counts its records."""

    added: int  # were new
    known: int  # were stored already


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`, which counts trials.

    `removed` trials were deleted (or would be, with dry_run), and `kept` trials are left.
    """

    removed: int
    kept: int


def merge(target: Store, source: Store) -> Merged:
    """Add the source's trials that the target does not have. The source is only read."""
    count = 0

    def counted() -> Iterator[Trial]:
        nonlocal count
        for trial in source.trials():
            count += 1
            yield trial

    added = target.add_many(counted())
    return Merged(added, count - added)


def prune(
    store: Store,
    failures: bool = False,
    older_than: datetime | None = None,
    *,
    keep_best: int | None = None,
    tolerance: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove the trials that meet any of the given criteria, in one transaction.

    `failures` removes failed trials, except where the config also has a success: the failure outdates that success,
    which would count again. `older_than` removes trials created before that time. Neither removes a trial that
    withdraws a config. `keep_best` is a number: for each workload and device, it keeps that many of the fastest
    successes that may be best (see `counts_for_best`) and removes all other successes. `tolerance` is by default what
    the dtype allows. With `dry_run` nothing is removed, only counted. Raises ValueError without a criterion, or for
    keep_best below 1, which would remove every success.
    """
    t = schema.trials
    criteria: list[ColumnElement[bool]] = []
    if failures:
        criteria.append(_is_removable_failure())
    if older_than is not None:
        old = t.c.created < microseconds(older_than)
        criteria.append(and_(old, func.coalesce(t.c.failure_kind, "") != str(FailureKind.WITHDRAWN)))
    if keep_best is not None:
        if keep_best < 1:
            raise ValueError(f"keep_best is {keep_best}, but at least one must be kept")
        criteria.append(_beyond(keep_best, tolerance))
    if not criteria:
        raise ValueError("nothing says which trials to remove: give failures, older_than or keep_best")
    doomed = select(t.c.id).where(or_(false(), *criteria))
    with store.reading() if dry_run else store.writing() as connection:
        total = connection.scalar(select(func.count()).select_from(t)) or 0
        if dry_run:
            removed = connection.scalar(select(func.count()).select_from(doomed.subquery())) or 0
        else:
            removed = connection.execute(delete(t).where(t.c.id.in_(doomed))).rowcount
    return Pruned(removed, total - removed)


def _is_removable_failure() -> ColumnElement[bool]:
    t, earlier = schema.trials, schema.trials.alias()
    same = and_(*(earlier.c[n] == t.c[n] for n in ("workload_id", "device_id", "config_digest", "config")))
    success = exists(select(1).where(same, earlier.c.failure_kind.is_(None)).correlate(t))
    return and_(t.c.failure_kind.is_not(None), t.c.failure_kind != str(FailureKind.WITHDRAWN), ~success)


def _beyond(keep: int, tolerance: float | None) -> ColumnElement[bool]:
    """Return the SQL condition for successes that are not among the `keep` fastest of their workload and device.

    Only successes that already may be best are kept, so no outdated measurement can become the best again.
    """
    t = schema.trials.alias()
    allowed = _tolerances(t) if tolerance is None else tolerance
    merit = (is_throttled(t), t.c.seconds, t.c.id)
    rank = func.row_number().over(partition_by=(t.c.workload_id, t.c.device_id), order_by=merit)
    ranked = select(t.c.id, rank.label("rank")).where(counts_for_best(t, allowed)).subquery()
    kept = select(ranked.c.id).where(ranked.c.rank <= keep)
    return and_(schema.trials.c.failure_kind.is_(None), schema.trials.c.id.not_in(kept))


def _tolerances(trials: FromClause) -> ColumnElement[float]:
    """Return the SQL expression for the tolerance that the dtype of a trial's workload allows.

    It searches the workload's key, which is its canonical JSON.
    """
    w = schema.workloads
    half = select(w.c.id).where(w.c.key.contains('"dtype":"float16"', autoescape=True))
    return case((trials.c.workload_id.in_(half), tolerance_of("float16")), else_=tolerance_of("float32"))


def verify(store: Store) -> Iterator[str]:
    """Yield one line for every problem found.

    The structure of the file is checked first, then each record against its keys and its digest.
    """
    structure = list(_structure(store))
    yield from structure
    if not structure:  # rows of a file with a broken structure are not worth reading
        yield from _keys(store)
        yield from _trials(store)


def _structure(store: Store) -> Iterator[str]:
    if store.path is None:  # PostgreSQL guards its own pages
        return
    try:
        with store.reading() as connection:
            for check in ("integrity_check", "foreign_key_check"):
                for row in connection.exec_driver_sql(f"PRAGMA {check}"):
                    if row[0] != "ok":
                        yield f"{store.name}: {' '.join(str(value) for value in row)}"
    except DatabaseError as error:  # the file is so damaged that SQLite cannot finish the check
        yield str(error)


def _key_problem(key: str, kind: type[Workload] | type[DeviceKey], row: Any, columns: tuple[str, ...]) -> str | None:
    try:
        value = kind.from_dict(parse_json(key))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        return f"its key cannot be read ({error!r})"
    if value.key != key:
        return f"its key is not canonical: {value.key} is"
    wrong = [name for name in columns if getattr(value, name) != getattr(row, name)]
    return f"its column {wrong[0]} does not match its key" if wrong else None


def _keys(store: Store) -> Iterator[str]:
    with store.reading() as connection:
        for row in connection.execute(select(schema.workloads)):
            if problem := _key_problem(row.key, Workload, row, ("op",)):
                yield f"workload {row.id}: {problem}"
        for row in connection.execute(select(schema.devices)):
            if problem := _key_problem(row.key, DeviceKey, row, ("kind", "family")):
                yield f"device {row.id}: {problem}"


def _trials(store: Store) -> Iterator[str]:
    t, w, d = schema.trials, schema.workloads, schema.devices
    query = select(t, w.c.key.label("workload_key"), d.c.key.label("device_key")).join(w).join(d).order_by(t.c.id)
    with store.reading() as connection:
        for row in connection.execution_options(yield_per=1000).execute(query):
            if problem := _trial_problem(row):
                yield f"trial {row.id}: {problem}"


def _trial_problem(row: Any) -> str | None:
    try:
        workload = Workload.from_dict(parse_json(row.workload_key))
        device = DeviceKey.from_dict(parse_json(row.device_key))
        trial = from_row(row, workload, device)
        expected = to_row(trial)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        return f"it cannot be read ({error})"
    wrong = [name for name, value in expected.items() if getattr(row, name) != value]
    return f"its column {wrong[0]} does not match its content" if wrong else None
