"""Collects what a report says, as JSON. Start at `collect`.

Times are in seconds, sizes in bytes, and moments in seconds since 1970. Devices and tasks are given by their indices in
"devices" and "tasks". `page.d.ts` describes all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tuner.report.page import sections
from tuner.report.page.context import Context
from tuner.report.page.networks import tasks_of
from tuner.report.page.scan import scan
from tuning_db.store import Store

FORMAT = 1


def collect(
    store: Store,
    modules: Sequence[Path] = (),
    benches: Sequence[Mapping[str, Any]] = (),
    roofs: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return everything that the page shows of a database and of built modules.

    `benches` are what `tune bench --json` printed. `roofs` has what `devices.roof.roof_of` measured, by the `key` of
    the DeviceKey. Raises DatabaseError if the store cannot be read, BadInput if a module cannot.
    """
    networks = {str(folder): tasks_of(folder) for folder in modules}
    context = Context(store, scan(store, networks), modules, networks, benches, roofs or {})
    data = {
        "format": FORMAT,
        "made": datetime.now(UTC).timestamp(),
        "edgetune": version("edgetune"),
        "database": store.name,
        "devices": context.devices,
        "tasks": context.tasks,
    }
    for name in sections.SECTIONS:
        module = f"{sections.__name__}.{name}"
        if find_spec(module) is None:  # the section has no data of its own
            continue
        own = import_module(module).collect(context)
        assert not data.keys() & own.keys(), f"{name} returns data of another section"
        data |= own
    return data
