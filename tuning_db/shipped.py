"""This module looks up the configs that are shipped with the package: start at `best`.

They are the best configs of workloads on the devices that the authors could measure, and serve devices of the same
families. They are looked up last and never become part of a user's database. The file is a log as
`tune db export --bests` writes it. It is read at the first look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import as_file, files

from tuning_db import logs
from tuning_db.errors import DatabaseError
from tuning_db.lookup import BestTrial, unlikeness
from tuning_db.record import DeviceKey, Trial, Workload

FILE = "bests.jsonl.xz"
# Kinds and families whose configs serve devices of the same model alone. On an Ice Lake Xeon the templates' first
# configs need 0.82 and 0.89 of the time of what was tuned on other CPUs with AVX-512 (80 and 60 layers, at random).
_OF_THE_MODEL = {("cpu", "x86_64-avx512")}


def best(workload: Workload, device: DeviceKey, usable: Callable[[Trial], bool] | None = None) -> BestTrial | None:
    """Return the shipped trial of a device with this very key, or else of the most similar one of its kind and family.
    CPUs with AVX-512 have to be of the same model.

    Its seconds were measured on another machine, even where the keys are equal. Return None where nothing usable is
    shipped. Raises DatabaseError if the file is damaged.
    """
    group = device.kind, device.family
    alike = [t for t in _trials().get(workload.key, ()) if (t.device.kind, t.device.family) == group]
    if group in _OF_THE_MODEL:
        alike = [t for t in alike if t.device.model == device.model]
    for trial in sorted(alike, key=lambda t: (t.device != device, unlikeness(device, t.device))):
        if usable is None or usable(trial):
            return BestTrial(trial, "shipped" if trial.device == device else "shipped family")
    return None


def trials() -> list[Trial]:
    """Return all shipped trials, one for each workload and device."""
    return [trial for found in _trials().values() for trial in found]


@cache
def _trials() -> Mapping[str, tuple[Trial, ...]]:
    """Read the shipped trials, by the workload's key."""
    found: dict[str, list[Trial]] = {}
    with as_file(files(__package__) / FILE) as path, logs.opened(path) as lines:
        for item in logs.read(lines):
            if isinstance(item, logs.BadLine):
                raise DatabaseError(f"{path}: line {item.number}: {item.reason}: install edgetune again")
            found.setdefault(item.workload.key, []).append(item)
    return {key: tuple(trials) for key, trials in found.items()}
