"""Collects the limits of each device, for each precision that tasks on it have."""

from __future__ import annotations

from typing import Any

from tuner.report.page.context import Context


def collect(context: Context) -> dict[str, Any]:
    """Return "roofs": for each device and precision the measured limits, else the highest rates of any task's best.

    Rates of trials are lower than what the device can do.
    """
    return {
        "roofs": [_roof(context, *found) for found in sorted({(t["device"], t["precision"]) for t in context.tasks})]
    }


def _roof(context: Context, device: int, precision: str) -> dict[str, Any]:
    """Return the limits of a device in one precision. A task is never compared with the peak of another precision."""
    roof = {"device": device, "precision": precision}
    measured = context.roofs.get(context.keys[device].key)
    if measured is not None and precision in measured["peaks"]:
        limits = {"flops": measured["peaks"][precision], "bytes_per_second": measured["bytes_per_second"]}
        return {**roof, "measured": True, **limits}
    best = [t for t in context.tasks if (t["device"], t["precision"]) == (device, precision) and t["best"]]
    flops = [t["flop"] / t["best"]["seconds"] for t in best if t["flop"]]
    rates = [t["bytes"] / t["best"]["seconds"] for t in best if t["bytes"]]
    fastest = {"flops": max(flops, default=None), "bytes_per_second": max(rates, default=None)}
    return {**roof, "measured": False, **fastest}
