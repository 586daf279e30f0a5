"""Says which tasks of a database a built module consists of. Start at `tasks_of`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tuner.module import read_manifest
from tuning_db.record import DeviceKey

# The keys of a workload and of a device.
Task = tuple[str, str]


def tasks_of(folder: Path) -> Counter[Task]:
    """Return how often a module computes each of its tasks in an inference. Raises BadInput if it is no module."""
    manifest = read_manifest(folder)
    keys = [DeviceKey.from_dict(processor.key).key for processor in manifest.devices]
    return Counter((operator.workload.key, keys[operator.device]) for operator in manifest.operators)
