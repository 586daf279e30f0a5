"""This module keeps the claims by which processes that share a database divide the tasks. Start at `Claims`.

A process claims a workload on a device before it tunes it. A claim is a lease by the database's clock, and its owner
renews it as long as it lives. When an owner dies, others may take the task over once the lease has run out. Rows are
locked while they change hands, with SKIP LOCKED on PostgreSQL and the writer's lock on SQLite. So of two processes that
want the same task, one gets it at once and the other looks for another task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sqlalchemy import BigInteger, ColumnElement, Connection, cast, delete, func, select, update
from sqlalchemy.sql.dml import Update

from tuning_db.keys import Ids, insert_into
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import claims, devices, in_flight, trials, workloads
from tuning_db.store import Store

_MICRO = 1_000_000


class Claims:
    """The claims that one owner holds on one device.

    An owner is HOST:PID/X, where X distinguishes the owners of one process. Every method raises DatabaseError if the
    database cannot be written.
    """

    def __init__(self, store: Store, device: DeviceKey, owner: str, seconds: float) -> None:
        """Make no claim yet. `seconds` says how long a claim holds unless it is renewed."""
        self._store, self._device, self._owner = store, device, owner
        self._lease = int(seconds * _MICRO)

    def take(
        self,
        workload: Workload,
        is_dead: Callable[[str], bool] | None = None,
        keep: Collection[Workload] = (),
    ) -> bool:
        """Claim a workload and give back all earlier claims except `keep`. Return False if another owner holds it.

        `is_dead` tells whether an owner is known to be dead, so that its lease need not run out first. Where the claim
        is taken over from another owner, that process's measurements of the workload leave the journal.
        """
        with self._store.writing() as connection:
            connection.execute(self._given_back(keep))
            ids = Ids(connection).of(workload, self._device)
            here = claims.c.workload_id == ids["workload_id"], claims.c.device_id == ids["device_id"]
            new = insert_into(connection, claims).on_conflict_do_nothing()
            connection.execute(new, {**ids, "owner": None, "expires": 0})
            query = select(claims.c.owner, claims.c.expires).where(*here).with_for_update(skip_locked=True)
            row = connection.execute(query).first()
            if row is None:  # another process is claiming the workload at this moment
                return False
            now = connection.scalars(select(database_now(connection))).one()
            others = row.owner is not None and row.owner != self._owner
            if others and row.expires > now and not (is_dead is not None and is_dead(row.owner)):
                return False
            values = {"owner": self._owner, "expires": now + self._lease}
            connection.execute(update(claims).where(*here).values(values))
            if others:
                journal = in_flight.c.workload_id == ids["workload_id"], in_flight.c.device_id == ids["device_id"]
                connection.execute(delete(in_flight).where(*journal, in_flight.c.owner == process_of(row.owner)))
        return True

    def give_back(self) -> None:
        """Give back all claims, so that other owners need not wait for the leases to run out."""
        with self._store.writing() as connection:
            connection.execute(self._given_back())

    def _given_back(self, keep: Collection[Workload] = ()) -> Update:
        kept = select(workloads.c.id).where(workloads.c.key.in_([w.key for w in keep]))
        mine = claims.c.owner == self._owner, claims.c.workload_id.not_in(kept)
        return update(claims).where(*mine).values(owner=None, expires=0)

    def renew(self) -> set[str]:
        """Renew all claims for another lease and return the keys of their workloads.

        A workload that was claimed and is missing in the result was lost: its lease ran out, and another owner took it.
        """
        with self._store.writing() as connection:
            until = database_now(connection) + self._lease
            mine = claims.c.owner == self._owner
            connection.execute(update(claims).where(mine).values(expires=until))
            return set(connection.scalars(select(workloads.c.key).select_from(claims.join(workloads)).where(mine)))

    def of_others(self) -> dict[str, str]:
        """Return the owners of all claims of others that hold now on this device, by the workload's key."""
        with self._store.reading() as connection:
            query = select(workloads.c.key, claims.c.owner).select_from(claims.join(workloads).join(devices))
            mine = claims.c.owner == self._owner
            valid = devices.c.key == self._device.key, claims.c.owner.is_not(None), ~mine
            rows = connection.execute(query.where(*valid, claims.c.expires > database_now(connection)))
            return {row.key: row.owner for row in rows}


def process_of(owner: str) -> str:
    """Return HOST:PID of an owner, the form that the journal uses."""
    return owner.partition("/")[0]


def database_now(connection: Connection) -> ColumnElement[int]:
    """Return the SQL for microseconds since 1970 by the database's own clock. Clocks of its users may differ."""
    if connection.dialect.name == "postgresql":
        return cast(func.extract("epoch", func.clock_timestamp()) * _MICRO, BigInteger)
    return cast((func.julianday("now") - 2440587.5) * (86_400 * _MICRO), BigInteger)


def trial_counts(store: Store, wanted: Collection[Workload], device: DeviceKey) -> Mapping[str, int]:
    """Count the trials that each of these workloads has on the device, by the workload's key.

    Workloads without trials are left out.
    """
    query = select(workloads.c.key, func.count()).select_from(workloads.join(trials)).group_by(workloads.c.key)
    here = select(devices.c.id).where(devices.c.key == device.key).scalar_subquery()
    with store.reading() as connection:
        rows = connection.execute(query.where(workloads.c.key.in_([w.key for w in wanted]), trials.c.device_id == here))
        return {row[0]: row[1] for row in rows}
