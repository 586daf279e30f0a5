"""This module stores the tuning time of each workload on each device, which a time budget counts across sessions.

It is stored beside the trials because it cannot be derived from them: starting up, searching and comparing take time
too. Logs and merges do not carry it, because trials from elsewhere cost no time here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, inspect, select

from tuning_db.keys import Ids, insert_into
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import devices, efforts, workloads
from tuning_db.store import Store


@dataclass(frozen=True)
class TuningTime:
    """Wall seconds that were spent on tuning a workload.

    `seconds` is the total. `build_seconds` went to building, `run_seconds` to checking and timing. The rest went to the
    search itself and to comparing with the database, or was spent before databases recorded the parts.
    """

    seconds: float = 0.0
    build_seconds: float = 0.0
    run_seconds: float = 0.0


_PARTS = tuple(f.name for f in fields(TuningTime))


def add_tuning_time(store: Store, more: Mapping[Workload, TuningTime], device: DeviceKey) -> None:
    """Add to the tuning time of each workload, in one commit.

    `TuningTime()`, which is zero, records that a session has tuned the workload. Raises DatabaseError if the database
    cannot be written.
    """
    if not more:
        return
    with store.writing() as connection:
        ids = Ids(connection)
        ids.add((workload, device) for workload in more)
        # The order of the keys keeps two processes from a deadlock.
        rows = [{**ids.of(w, device), **asdict(e)} for w, e in sorted(more.items(), key=lambda i: i[0].key)]
        insert = insert_into(connection, efforts)
        totals = {name: efforts.c[name] + insert.excluded[name] for name in _PARTS}
        upsert = insert.on_conflict_do_update(index_elements=list(efforts.primary_key), set_=totals)
        connection.execute(upsert, rows)


def tuning_times_of(store: Store, wanted: Iterable[Workload], device: DeviceKey) -> dict[Workload, TuningTime]:
    """Return the tuning time of each workload so far. Workloads that no session has tuned are left out."""
    parts = (efforts.c[name] for name in _PARTS)
    query = select(workloads.c.key, *parts).select_from(efforts.join(workloads).join(devices))
    with store.reading() as connection:
        rows = connection.execute(query.where(devices.c.key == device.key)).all()
    found = {row.key: TuningTime(*row[1:]) for row in rows}
    return {w: found[w.key] for w in wanted if w.key in found}


def tuning_times_by_id(connection: Connection) -> dict[tuple[int, int], TuningTime]:
    """Return all tuning times by the ids of workload and device.

    A database that is opened read-only may still have the schema of an older edgetune, which lacks the table or some
    of its columns. What is missing counts as zero.
    """
    inspector = inspect(connection)
    if not inspector.has_table(efforts.name):
        return {}
    kept = {column["name"] for column in inspector.get_columns(efforts.name)}
    parts = [name for name in _PARTS if name in kept]
    query = select(efforts.c.workload_id, efforts.c.device_id, *(efforts.c[name] for name in parts))
    return {(row[0], row[1]): TuningTime(**dict(zip(parts, row[2:], strict=True))) for row in connection.execute(query)}
