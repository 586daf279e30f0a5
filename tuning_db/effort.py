"""How much time was spent on tuning each workload on each device: what a time budget counts across sessions.

Kept beside the trials because it cannot be derived from them: starting up, searching and comparing take time too.
Logs and merges do not carry it: trials from elsewhere cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from tuning_db.keys import Ids
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import devices, efforts, workloads
from tuning_db.store import Store


def _insert(connection: Connection, table: Table) -> Any:
    """An INSERT that can also update; each database has its own."""
    return (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)


def add_effort(store: Store, seconds: Mapping[Workload, float], device: DeviceKey) -> None:
    """Add seconds to what each workload had before, in one commit. Zero marks a workload as known to a session.

    Raises DatabaseError if the database cannot be written.
    """
    if not seconds:
        return
    with store.writing() as connection:
        ids = Ids(connection, partial(_insert, connection))
        # In the order of the keys, so that two processes cannot wait for each other.
        rows = [{**ids.of(w, device), "seconds": seconds[w]} for w in sorted(seconds, key=lambda w: w.key)]
        insert = _insert(connection, efforts)
        total = efforts.c.seconds + insert.excluded.seconds
        upsert = insert.on_conflict_do_update(index_elements=list(efforts.primary_key), set_={"seconds": total})
        connection.execute(upsert, rows)


def efforts_of(store: Store, wanted: Iterable[Workload], device: DeviceKey) -> dict[Workload, float]:
    """Seconds spent on each workload so far; those that no session has known are left out."""
    query = select(workloads.c.key, efforts.c.seconds).select_from(efforts.join(workloads).join(devices))
    with store.reading() as connection:
        rows = connection.execute(query.where(devices.c.key == device.key)).all()
    found = {row.key: row.seconds for row in rows}
    return {w: found[w.key] for w in wanted if w.key in found}
