"""`best`: what is known about a workload on a device, from the device itself or else from its family.

Where nothing is known the answer is None, and the caller uses a default and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tuning_db.record import DeviceKey, Trial, Workload
from tuning_db.store import Store


@dataclass(frozen=True)
class BestTrial:
    """A trial and how near it is: measured on this very device, or on another one of its family; or shipped with the
    package (tuning_db.shipped), for a device with this key or of its family."""

    trial: Trial
    source: Literal["device", "family", "shipped", "shipped family"]


def best(
    store: Store,
    workload: Workload,
    device: DeviceKey,
    tolerance: float | None = None,
    usable: Callable[[Trial], bool] | None = None,
) -> BestTrial | None:
    """The fastest usable trial of this device (see Store.best), else that of its nearest relative which has one.

    Seconds of two devices do not compare, so relatives are tried by likeness, not by their times. Raises
    DatabaseError if the database cannot be read.
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
    """The other devices of the same kind and family, most alike first."""
    others = (d for d in store.devices(device.kind, device.family) if d != device)
    return sorted(others, key=lambda other: unlikeness(device, other))


def unlikeness(device: DeviceKey, other: DeviceKey) -> tuple[bool, int, str]:
    """Sorts the most alike first: same model, then most equal attributes."""
    equal = sum(other.attrs.get(name) == value for name, value in device.attrs.items())
    return other.model != device.model, -equal, other.key
