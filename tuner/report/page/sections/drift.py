"""Collects when each device's trials were, and what was measured more than once."""

from __future__ import annotations

from typing import Any

from tuner.report.page.context import Context
from tuner.report.page.scan import thinned


def collect(context: Context) -> dict[str, Any]:
    """Return "drift": of each device the trials over time, and repeated measurements over the first of their config."""
    return {"drift": [_drift(context, device) for device in context.device_of if device in context.found.bins]}


def _drift(context: Context, device: int) -> dict[str, Any]:
    found = context.found
    begin, end = found.spans[device]
    repeats = thinned(found.repeats[device])
    return {
        "device": context.device_of[device],
        "began": begin / 1e6,
        "ended": end / 1e6,
        "bins": found.bins[device],
        "marked": sum(marked for _, marked in found.bins[device]),
        "repeated": len(found.repeats[device]),
        "repeats": [[(at - begin) / 1e6, ratio, int(marked)] for at, ratio, marked in repeats],
    }
