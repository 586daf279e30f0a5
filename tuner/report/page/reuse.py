"""How near what is known of a workload is to the device that it would be used on: `reuse_view`, `kin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.report.page.names import device_text, workload_text
from tuning_db.lookup import best
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import Store


def reuse_view(store: Store, devices: Sequence[DeviceKey], workloads: Sequence[Workload]) -> list[dict[str, Any]]:
    """For every workload that some device has and another of its family lacks: whose record that one would use. Raises
    DatabaseError if the store cannot be read."""
    views = []
    for device in devices:
        if sum((d.kind, d.family) == (device.kind, device.family) for d in devices) < 2:
            continue
        for workload in workloads:
            found = best(store, workload, device)
            if found is not None and found.source == "family":
                to = devices.index(device)
                views.append({"text": workload_text(workload), "device": to, **kin(device, found.trial.device)})
    return views


def kin(device: DeviceKey, other: DeviceKey) -> dict[str, Any]:
    """Another device and what it differs in."""
    names = sorted(set(device.attrs) | set(other.attrs))
    differs = [n for n in names if device.attrs.get(n) != other.attrs.get(n)]
    if device.model != other.model:
        differs.insert(0, "model")
    return {"from": device_text(other), "differs": ", ".join(differs) or "nothing"}
