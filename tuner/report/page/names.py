"""Short texts for what a database holds, whatever it holds: workloads of operators that are not known here, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from templates.workloads import flop_of
from tuner.report.tables import describe
from tuning_db.record import DeviceKey, Workload


def workload_text(workload: Workload) -> str:
    """ "conv2d 64x56x56 -> 64, 3x3/1 +bias"."""
    try:
        return f"{workload.op} {describe(workload)}"
    except (KeyError, TypeError, IndexError):  # of another version: not the attributes that we know
        return f"{workload.op} {knobs_text(workload.attrs)}"


def flop_or_none(workload: Workload) -> float | None:
    """As `flop_of`; None for a workload of another version, too."""
    try:
        return flop_of(workload)
    except (KeyError, TypeError, ValueError):
        return None


def device_text(device: DeviceKey) -> str:
    """Its kind and model, and its threads, which are what two CPUs with one name differ in."""
    threads = device.attrs.get("threads")
    platform = device.attrs.get("platform")
    more = f", {threads} threads" if threads is not None else f", {platform}" if platform is not None else ""
    return f"{device.kind} {device.model}{more}"


def knobs_text(knobs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items()) or "-"
