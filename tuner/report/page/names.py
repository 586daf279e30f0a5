"""Short texts for what a database holds, whatever it holds: workloads of operators that are not known here, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from templates.workloads import STRANGE, flop_of
from tuner.report.tables import describe
from tuning_db.record import DeviceKey, Workload


def workload_text(workload: Workload) -> str:
    """ "conv2d 64x56x56 -> 64, 3x3/1 +bias"."""
    try:
        return f"{workload.op} {describe(workload)}"
    except STRANGE:
        return f"{workload.op} {knobs_text(workload.attrs)}"


def flop_or_none(workload: Workload) -> float | None:
    """As `flop_of`; None for a workload of another version, too, and for sizes that no operator has."""
    try:
        flop = flop_of(workload)
    except STRANGE:
        return None
    return flop if flop is not None and flop > 0 else None


def device_text(device: DeviceKey) -> str:
    """Its kind and model, and its threads, which are what two CPUs with one name differ in."""
    threads = device.attrs.get("threads")
    platform = device.attrs.get("platform")
    more = "" if platform is None else f", {platform}"
    if threads is not None:
        more = f", {threads} thread{'' if threads == 1 else 's'}"
    return f"{device.kind} {device.model}{more}"


def knobs_text(knobs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items()) or "-"
