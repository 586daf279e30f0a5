"""Collects which records of other devices a device would use, and what those devices differ in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuner.module import Manifest, read_manifest
from tuner.report.page.context import Context
from tuner.report.page.names import device_text
from tuner.report.page.nearness import kin, nearness
from tuner.report.text import workload_text
from tuning_db import shipped
from tuning_db.lookup import best
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import Store


def collect(context: Context) -> dict[str, Any]:
    """Return "reuse": the rows of `reuse_view` for the database's tasks, then those of `layer_view`, none twice."""
    found = context.found
    workloads = [found.workloads[w] for w in sorted({w for w, _ in found.trials})]
    tried = {(found.workloads[w], context.device_of[d]) for w, d in found.trials}
    places = {key: i for i, key in enumerate(context.keys)}
    rows = reuse_view(context.store, context.keys, workloads, tried)
    for folder in context.modules:
        layers = layer_view(context.store, read_manifest(folder, check_files=False), places)
        rows += [row for row in layers if row not in rows]
    return {"reuse": rows}


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


def _row(workload: Workload, place: int | None, device: DeviceKey, near: Mapping[str, Any]) -> dict[str, Any]:
    return {"op": workload.op, "text": workload_text(workload), "device": place, "on": device_text(device), **near}
