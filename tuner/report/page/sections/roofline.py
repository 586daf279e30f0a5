"""Collects the limits of each device."""

from __future__ import annotations

from typing import Any

from tuner.report.page.context import Context


def collect(context: Context) -> dict[str, Any]:
    """Return "roofs": the measured limits of each device, else the highest rates of any task's best.

    Rates of trials are lower than what the device can do.
    """
    roofs = []
    for i, device in enumerate(context.keys):
        if device.key in context.roofs:
            roofs.append({"device": i, "measured": True, **context.roofs[device.key]})
            continue
        best = [t for t in context.tasks if t["device"] == i and t["best"]]
        flops = [t["flop"] / t["best"]["seconds"] for t in best if t["flop"]]
        rates = [t["bytes"] / t["best"]["seconds"] for t in best if t["bytes"]]
        fastest = {"flops": max(flops, default=None), "bytes_per_second": max(rates, default=None)}
        roofs.append({"device": i, "measured": False, **fastest})
    return {"roofs": roofs}
