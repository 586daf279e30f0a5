"""Collects what plans have measured: steps of networks, transforms of layouts, copies between devices."""

from __future__ import annotations

from typing import Any

from tuner.report.page.context import Context
from tuner.report.page.scan import Pair
from tuner.report.text import knobs_text

_SHOWN = ("operator", "reads", "shape", "before", "to", "bytes")


def collect(context: Context) -> dict[str, Any]:
    """Return "pieces" with the seconds of the latest measurement of each."""
    return {"pieces": [_piece(context, pair, seconds) for pair, seconds in context.found.pieces.items()]}


def _piece(context: Context, pair: Pair, seconds: float) -> dict[str, Any]:
    workload = context.found.workloads[pair[0]]
    text = knobs_text({name: workload.attrs[name] for name in _SHOWN if name in workload.attrs})
    return {"op": workload.op, "text": text, "device": context.device_of[pair[1]], "seconds": seconds}
