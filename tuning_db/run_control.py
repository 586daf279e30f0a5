"""This module stores the requests of run control: a user asks runs to pause, or to skip a task.

The requests are in the database that the runs tune in. A run looks for them between two batches: start at `RunControl`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, insert, select

from tuning_db.claims import database_now
from tuning_db.keys import Ids
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import devices, wishes, workloads
from tuning_db.store import Store

_PAUSE, _SKIP = "pause", "skip"


@dataclass(frozen=True)
class Requests:
    """The requests that concern a run. `skipped` holds keys of workloads."""

    paused: bool
    skipped: frozenset[str]


class RunControl:
    """Pause and skip requests for one run, which begins when the object is made, on one device.

    A pause concerns every run. Skip requests that are older than the run are ignored. Raises DatabaseError if the
    database cannot be read.
    """

    def __init__(self, store: Store, device: DeviceKey) -> None:
        self._store, self._device = store, device
        with store.reading() as connection:
            self._began = connection.scalars(select(database_now(connection))).one()

    def made(self) -> Requests:
        query = select(wishes.c.wish, wishes.c.created, workloads.c.key, devices.c.key.label("device"))
        query = query.select_from(wishes.outerjoin(workloads).outerjoin(devices))
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        here = [r for r in rows if r.wish == _SKIP and r.device == self._device.key and r.created >= self._began]
        return Requests(any(r.wish == _PAUSE for r in rows), frozenset(r.key for r in here))


def is_paused(store: Store) -> bool:
    """Tell whether runs in this database are asked to pause. Raises DatabaseError if the database cannot be read."""
    with store.reading() as connection:
        return connection.execute(select(wishes.c.id).where(wishes.c.wish == _PAUSE)).first() is not None


def pause(store: Store) -> None:
    """Ask all runs in this database to wait until `resume`. Raises DatabaseError if the database cannot be written."""
    with store.writing() as connection:
        connection.execute(delete(wishes).where(wishes.c.wish == _PAUSE))
        connection.execute(insert(wishes).values(wish=_PAUSE, created=database_now(connection)))


def resume(store: Store) -> None:
    """Withdraw the request to pause. Raises DatabaseError if the database cannot be written."""
    with store.writing() as connection:
        connection.execute(delete(wishes).where(wishes.c.wish == _PAUSE))


def skip(store: Store, workload: Workload, device: DeviceKey) -> None:
    """Ask the runs that are under way on the device to leave this task out from now on.

    Raises DatabaseError if the database cannot be written.
    """
    with store.writing() as connection:
        ids = Ids(connection).of(workload, device)
        same = wishes.c.workload_id == ids["workload_id"], wishes.c.device_id == ids["device_id"]
        connection.execute(delete(wishes).where(wishes.c.wish == _SKIP, *same))
        connection.execute(insert(wishes).values(wish=_SKIP, **ids, created=database_now(connection)))
