"""From stored keys to values and from values to row ids, each looked up once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Table, select

from tuning_db.errors import DatabaseError
from tuning_db.record import DeviceKey, Workload
from tuning_db.schema import devices, workloads


class Keys:
    """Workloads and devices from their keys, each decoded once. Raises DatabaseError for a damaged key."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def _decoded(self, key: str, decode: Callable[[Mapping[str, Any]], Any]) -> Any:
        if key not in self._known:
            try:
                self._known[key] = decode(json.loads(key))
            except (TypeError, ValueError, KeyError) as error:
                raise DatabaseError(
                    f"the stored key {key[:80]!r} is damaged; `tune db verify` lists all damage"
                ) from error
        return self._known[key]

    def workload(self, key: str) -> Workload:
        return self._decoded(key, Workload.from_dict)

    def device(self, key: str) -> DeviceKey:
        return self._decoded(key, DeviceKey.from_dict)


class Ids:
    """Row ids of workloads and devices inside one transaction, inserted where they are new."""

    def __init__(self, connection: Connection, insert: Callable[[Table], Any]) -> None:
        self._connection = connection
        self._insert = insert
        self._known: dict[tuple[str, str], int] = {}

    def of(self, workload: Workload, device: DeviceKey) -> dict[str, int]:
        return {
            "workload_id": self._id(workloads, workload.key, {"op": workload.op}),
            "device_id": self._id(devices, device.key, {"kind": device.kind, "family": device.family}),
        }

    def _id(self, table: Table, key: str, values: Mapping[str, str]) -> int:
        found = self._known.get((table.name, key))
        if found is None:
            query = select(table.c.id).where(table.c.key == key)
            found = self._connection.scalar(query)
            if found is None:
                self._connection.execute(self._insert(table).on_conflict_do_nothing().values(key=key, **values))
                found = self._connection.execute(query).scalar_one()
            self._known[table.name, key] = found
        return found
