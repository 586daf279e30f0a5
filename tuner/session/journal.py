"""The database's journal of what is in flight, seen from a session: take back what is not going to end."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection

import psutil

from tuning_db.record import Config, DeviceKey, Workload
from tuning_db.store import InFlight, Store


def release_dead(store: Store, device: DeviceKey) -> int:
    """Take entries out of the journal whose process is gone from this machine (it was killed): their configs may be
    measured again. Returns how many there were."""
    dead = [e for e in store.in_flight() if e.device == device and _is_dead(e)]
    if dead:
        store.abandon(dead)
    return len(dead)


def _is_dead(entry: InFlight) -> bool:
    host, _, pid = entry.owner.rpartition(":")
    return host == platform.node() and pid.isdecimal() and int(pid) != os.getpid() and not psutil.pid_exists(int(pid))


def release(store: Store, device: DeviceKey, workload: Workload, configs: Collection[Config]) -> None:
    """Take configs out of the journal that this process began and will not finish."""
    owner = f"{platform.node()}:{os.getpid()}"
    keys = {c.key for c in configs}
    ours = [
        e
        for e in store.in_flight()
        if e.owner == owner and e.device == device and e.workload == workload and e.config.key in keys
    ]
    if ours:
        store.abandon(ours)
