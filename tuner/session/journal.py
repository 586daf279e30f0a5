"""Keep a session's entries in the database's journal of configs that are being measured. Entries whose measurement will
not end are taken back. Entries that a dead session left show which candidate may have killed it. Start at `journalled`
and `release_dead`.

On this machine a candidate may take the session down with it, by hanging or restarting the system. So the candidate
that a dead session was measuring is measured again alone, before anything else of its task. If the session dies then
too, the candidate is to blame, and is recorded as failed.
"""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import psutil

from templates.template import template_named
from tuning_db.claims import process_of
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.store import AGAIN, InFlight, Store

_CLOCK_SECONDS = 60.0  # two readings of one clock may differ by this much, as it is adjusted


def release_dead(store: Store, device: DeviceKey, on_this_machine: bool) -> dict[Workload, list[Config]]:
    """Take the entries of processes that are gone from this machine out of the journal, so that their configs may be
    measured again. Return the configs that were being measured when their process died, by workload. A config that was
    measured at such a moment for the second time is recorded as failed instead.

    `on_this_machine` says that the device belongs to this machine. Otherwise a candidate does not take the session
    down.
    """
    dead = [e for e in store.in_flight() if e.device == device and is_gone(process_of(e.owner), e.started)]
    suspects = _under_measurement(store, dead) if on_this_machine else []
    for entry in [e for e in suspects if e.owner.endswith(AGAIN)]:
        store.add(_blamed(entry))
        suspects.remove(entry)
        dead.remove(entry)
    if dead:
        store.abandon(dead)
    found: dict[Workload, list[Config]] = defaultdict(list)
    for entry in suspects:
        found[entry.workload].append(entry.config)
    return dict(found)


def _under_measurement(store: Store, dead: Iterable[InFlight]) -> list[InFlight]:
    """Return the first entry that each process left, because candidates are measured in order. An entry whose config
    ran before is left out: it was only being compared."""
    first: dict[str, InFlight] = {}
    for entry in sorted(dead, key=lambda e: e.started):
        first.setdefault(entry.owner, entry)
    return [e for e in first.values() if not _has_run(store, e)]


def _has_run(store: Store, entry: InFlight) -> bool:
    return any(t.config == entry.config for t in store.trials(entry.workload, entry.device, ok=True))


def _blamed(entry: InFlight) -> Trial:
    why = "the session that measured it died, twice: it is not measured again"
    try:
        version = template_named(entry.config.template).version
    except KeyError:  # the template belongs to a plugin that is not here now
        version = 0
    return Trial(entry.workload, entry.device, entry.config, version, failure=Failure(FailureKind.DEVICE_LOST, why))


def is_gone(process: str, since: datetime | None = None) -> bool:
    """Return whether HOST:PID was a process of this machine that has ended. `since` is a time when it was there. A
    process that began later has the same number by chance, as after a restart of the system."""
    host, _, pid = process.rpartition(":")
    if host != platform.node() or not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        found = psutil.Process(int(pid))
        if since is not None and found.create_time() > since.timestamp() + _CLOCK_SECONDS:
            return True
        return found.status() == psutil.STATUS_ZOMBIE  # its parent has not noticed that it ended, and may never
    except psutil.NoSuchProcess:
        return True


def release(store: Store, device: DeviceKey, workload: Workload, configs: Collection[Config]) -> None:
    """Take configs out of the journal that this process began and will not finish."""
    owner, keys = f"{platform.node()}:{os.getpid()}", {c.key for c in configs}
    left = [
        e
        for e in store.in_flight()
        if process_of(e.owner) == owner and e.device == device and e.workload == workload and e.config.key in keys
    ]
    if left:
        store.abandon(left)


@contextmanager
def journalled(store: Store, device: DeviceKey, workload: Workload, configs: Sequence[Config]) -> Iterator[None]:
    """Keep these configs in the journal until there are trials of them, or the block ends."""
    store.begin(workload, device, configs)
    try:
        yield
    finally:
        release(store, device, workload, configs)
