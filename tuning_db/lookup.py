"""This module looks up the best known trial of a workload for a device: start at `best`.

It searches the device itself and then its family. Where nothing is known it returns None, and the caller uses a default
config and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tuning_db.record import DeviceKey, Trial, Workload
from tuning_db.store import Store


@dataclass(frozen=True)
class BestTrial:
    """A trial and where it was measured.

    `source` is "device" for this very device and "family" for another device of its family. It is "shipped" or "shipped
    family" for a trial that is shipped with the package (tuning_db.shipped), measured on a device with the same key or
    on another of the family.
    """

    trial: Trial
    source: Literal["device", "family", "shipped", "shipped family"]


def best(
    store: Store,
    workload: Workload,
    device: DeviceKey,
    tolerance: float | None = None,
    usable: Callable[[Trial], bool] | None = None,
) -> BestTrial | None:
    """Return the fastest usable trial of this device (see Store.best), or else that of its nearest relative.

    Relatives without a usable trial are passed over. Times on two devices cannot be compared, so relatives are tried in
    the order of their likeness, not of their times. Raises DatabaseError if the database cannot be read.
    """
    trial = store.best(workload, device, tolerance, usable)
    if trial is not None:
        return BestTrial(trial, "device")
    for relative in relatives(store, device):
        trial = store.best(workload, relative, tolerance, usable)
        if trial is not None:
            return BestTrial(trial, "family")
    return None


def relatives(store: Store, device: DeviceKey) -> list[DeviceKey]:
    """Return the other devices of the same kind and family, the most similar first."""
    others = (d for d in store.devices(device.kind, device.family) if d != device)
    return sorted(others, key=lambda other: unlikeness(device, other))


def unlikeness(device: DeviceKey, other: DeviceKey) -> tuple[bool, int, str]:
    """Return a sort key that puts the most similar device first: same model, then most equal attributes."""
    equal = sum(other.attrs.get(name) == value for name, value in device.attrs.items())
    return other.model != device.model, -equal, other.key
