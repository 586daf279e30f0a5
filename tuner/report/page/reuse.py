"""Shows which records of other devices a device would use, and what those devices differ in.

Start at `reuse_view` for a database and at `layer_view` for a built module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuner.module import Manifest, OperatorEntry
from tuner.report.page.names import device_text, workload_text
from tuning_db import shipped
from tuning_db.lookup import BestTrial, best, relatives
from tuning_db.record import DeviceKey, Trial, Workload
from tuning_db.store import Store

_SHIPPED = ("shipped", "shipped family")


def reuse_view(
    store: Store, devices: Sequence[DeviceKey], workloads: Sequence[Workload], tried: Collection[tuple[Workload, int]]
) -> list[dict[str, Any]]:
    """Return the records that devices would use although they were measured elsewhere.

    There is a row for every workload that one device has and another device of its family lacks: it says whose record
    the other one would use. A workload that was `tried` on a device without a best (a pair with the device's index in
    `devices`) may also have a record that is shipped. Raises DatabaseError if the store cannot be read.
    """
    views = []
    for place, device in enumerate(devices):
        related = sum((d.kind, d.family) == (device.kind, device.family) for d in devices) > 1
        for workload in workloads:
            if not related and (workload, place) not in tried:
                continue
            found = best(store, workload, device)
            if found is None and (workload, place) in tried:
                found = shipped.best(workload, device)
            if found is not None and found.source != "device":
                views.append(_row(workload, place, device, kin(device, found)))
    return views


def layer_view(store: Store, manifest: Manifest, places: Mapping[DeviceKey, int]) -> list[dict[str, Any]]:
    """Return the layers of a module whose kernels had not been measured on their device when the module was built.

    `places` has the indices of devices in the page's list. Raises DatabaseError if the store cannot be read.
    """
    keys = [DeviceKey.from_dict(processor.key) for processor in manifest.devices]
    views = []
    for operator in manifest.operators:
        key = keys[operator.device]
        near = nearness(store, operator, key)
        if near is not None:
            views.append(_row(operator.workload, places.get(key), key, near))
    return [view for i, view in enumerate(views) if view not in views[:i]]


def nearness(store: Store, operator: OperatorEntry, device: DeviceKey) -> dict[str, Any] | None:
    """Return on which device a layer's config was measured, and what that device differs in.

    Returns None if the config was measured on the layer's own device, if a plan says it, and if the layer has no
    kernel of a template.
    """

    def is_its(trial: Trial) -> bool:
        return trial.config == operator.config

    if operator.source == "default":
        return {"from": "no device: its template's default", "differs": ""}
    if operator.source == "family":
        measured = (store.best(operator.workload, other, usable=is_its) for other in relatives(store, device))
        found = next((BestTrial(trial, "family") for trial in measured if trial is not None), None)
    elif operator.source in _SHIPPED:
        found = shipped.best(operator.workload, device, is_its)
    else:
        return None
    return {"from": "a device that this database lacks", "differs": ""} if found is None else kin(device, found)


def _row(workload: Workload, place: int | None, device: DeviceKey, near: Mapping[str, Any]) -> dict[str, Any]:
    return {"op": workload.op, "text": workload_text(workload), "device": place, "on": device_text(device), **near}


def kin(device: DeviceKey, found: BestTrial) -> dict[str, Any]:
    """Return the device whose record was found, and what it differs in from `device`."""
    other = found.trial.device
    names = sorted(set(device.attrs) | set(other.attrs))
    differs = [n for n in names if device.attrs.get(n) != other.attrs.get(n)]
    if device.model != other.model:
        differs.insert(0, "model")
    came = " (shipped with the package)" if found.source in _SHIPPED else ""
    return {"from": device_text(other) + came, "differs": ", ".join(differs) or "nothing"}
