"""How much time was spent on tuning each workload on each device: what a time budget counts across sessions.

Kept beside the trials because it cannot be derived from them: starting up, searching and comparing take time too.
Logs and merges do not carry it: trials from elsewhere cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select

from tuning_db.keys import Ids, insert_into
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import devices, efforts, workloads
from tuning_db.store import Store


def add_effort(store: Store, seconds: Mapping[Workload, float], device: DeviceKey) -> None:
    """Add seconds to what each workload had before, in one commit. Zero marks a workload as known to a session.

    Raises DatabaseError if the database cannot be written.
    """
    if not seconds:
        return
    with store.writing() as connection:
        ids = Ids(connection)
        ids.add((workload, device) for workload in seconds)
        # In the order of the keys, so that two processes cannot wait for each other.
        rows = [{**ids.of(w, device), "seconds": seconds[w]} for w in sorted(seconds, key=lambda w: w.key)]
        insert = insert_into(connection, efforts)
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
