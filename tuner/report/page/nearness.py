"""Tells on which device a kernel was measured that another device uses. Start at `nearness`."""

from __future__ import annotations

from typing import Any

from tuner.module import OperatorEntry
from tuner.report.page.names import device_text
from tuning_db import shipped
from tuning_db.lookup import BestTrial, relatives
from tuning_db.record import DeviceKey, Trial
from tuning_db.store import Store

_SHIPPED = ("shipped", "shipped family")


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


def kin(device: DeviceKey, found: BestTrial) -> dict[str, Any]:
    """Return the device whose record was found, and what it differs in from `device`."""
    other = found.trial.device
    names = sorted(set(device.attrs) | set(other.attrs))
    differs = [n for n in names if device.attrs.get(n) != other.attrs.get(n)]
    if device.model != other.model:
        differs.insert(0, "model")
    came = " (shipped with the package)" if found.source in _SHIPPED else ""
    return {"from": device_text(other) + came, "differs": ", ".join(differs) or "nothing"}
