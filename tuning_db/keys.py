"""This module decodes stored keys (`Keys`) and finds or inserts the row ids of workloads and devices (`Ids`).

Both look up each key once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from board_agent.parsing import parse_json
from tuning_db.errors import DatabaseError
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import devices, workloads

T = TypeVar("T")


class Keys:
    """A decoder that turns keys into workloads and devices, each key once.

    `workload` and `device` raise DatabaseError for a damaged key.
    """

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def _decoded(self, key: str, decode: Callable[[Mapping[str, Any]], Any]) -> Any:
        if key not in self._known:
            try:
                self._known[key] = decode(parse_json(key))
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise DatabaseError(
                    f"the stored key {key[:80]!r} is damaged; `tune db verify` lists all damage"
                ) from error
        return self._known[key]

    def workload(self, key: str) -> Workload:
        return self._decoded(key, Workload.from_dict)

    def device(self, key: str) -> DeviceKey:
        return self._decoded(key, DeviceKey.from_dict)

    def readable_workloads(self, keys: Iterable[str]) -> list[Workload]:
        """Decode the keys of workloads and leave out those that are damaged."""
        return _readable(self.workload, keys)

    def readable_devices(self, keys: Iterable[str]) -> list[DeviceKey]:
        """Decode the keys of devices and leave out those that are damaged."""
        return _readable(self.device, keys)


def _readable(decode: Callable[[str], T], keys: Iterable[str]) -> list[T]:
    found = []
    for key in keys:
        with suppress(DatabaseError):
            found.append(decode(key))
    return found


def insert_into(connection: Connection, table: Table) -> Any:
    """Return the database's own INSERT, which can also update, or do nothing, where the row exists already."""
    return (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)


class Ids:
    """A cache of the row ids of workloads and devices inside one transaction, which inserts the keys that are new.

    A transaction that inserts a key makes every other transaction that inserts the same key wait. To avoid deadlocks,
    workloads are inserted before devices, and several of either (`add`) in the order of their keys.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[str, str], int] = {}

    def add(self, pairs: Iterable[tuple[Workload, DeviceKey]]) -> None:
        """Insert the workloads and devices that are new. Call it before `of` is called for any of them."""
        new: tuple[dict[str, Workload], dict[str, DeviceKey]] = {}, {}
        for workload, device in pairs:
            new[0][workload.key], new[1][device.key] = workload, device
        for key in sorted(new[0]):
            self._workload(new[0][key])
        for key in sorted(new[1]):
            self._device(new[1][key])

    def of(self, workload: Workload, device: DeviceKey) -> dict[str, int]:
        return {"workload_id": self._workload(workload), "device_id": self._device(device)}

    def _workload(self, workload: Workload) -> int:
        return self._id(workloads, workload.key, {"op": workload.op})

    def _device(self, device: DeviceKey) -> int:
        return self._id(devices, device.key, {"kind": device.kind, "family": device.family})

    def _id(self, table: Table, key: str, values: Mapping[str, str]) -> int:
        found = self._known.get((table.name, key))
        if found is None:
            query = select(table.c.id).where(table.c.key == key)
            found = self._connection.scalar(query)
            if found is None:
                self._connection.execute(
                    insert_into(self._connection, table).on_conflict_do_nothing().values(key=key, **values)
                )
                found = self._connection.execute(query).scalar_one()
            self._known[table.name, key] = found
        return found
