"""The database's journal of what is in flight, seen from a session: take back what is not going to end."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection

import psutil

from tuning_db.record import Config, DeviceKey, Workload
from tuning_db.store import Store


def release_dead(store: Store, device: DeviceKey) -> int:
    """Take entries out of the journal whose process is gone from this machine (it was killed): their configs may be
    measured again. Returns how many there were."""
    dead = [e for e in store.in_flight() if e.device == device and is_gone(e.owner)]
    if dead:
        store.abandon(dead)
    return len(dead)


def is_gone(process: str) -> bool:
    """Whether HOST:PID was a process of this machine that ended."""
    host, _, pid = process.rpartition(":")
    if host != platform.node() or not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE  # its parent has not noticed, and may never
    except psutil.NoSuchProcess:
        return True


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
