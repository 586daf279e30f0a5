"""Collects how the time of networks, or of all tasks, has fallen while they were tuned. Start at `collect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.module import read_manifest
from tuner.report.page.context import Context
from tuner.report.page.scan import ALL, Pair, Progress

_STEP = 0.002  # a point is left out if it lowers the time by a smaller share of it


def collect(context: Context) -> dict[str, Any]:
    """Return "falls": of each module's tasks, or else of each device's tasks taken once, the (seconds of tuning,
    seconds of an inference) at which something better was found. Raises BadInput if a module is none."""
    found, falls = context.found, []
    for folder in context.modules:
        tasks, name = context.networks[str(folder)], read_manifest(folder).model["name"]
        weights = {p: tasks.get((found.workloads[p[0]].key, found.devices[p[1]].key), 0) for p in context.pairs}
        falls += [
            _fall(context, f"operators of {name}", device, progress, weights)
            for (network, device), progress in found.progress.items()
            if network == str(folder)
        ]
    if not falls:
        once = dict.fromkeys(context.pairs, 1)
        falls = [
            _fall(context, "all tasks, each once", device, progress, once)
            for (network, device), progress in found.progress.items()
            if network == ALL
        ]
    return {"falls": [fall for fall in falls if fall["points"]]}


def _fall(context: Context, name: str, device: int, progress: Progress, weights: Mapping[Pair, int]) -> dict[str, Any]:
    return {"name": name, "device": context.device_of[device], "points": list(_points(progress, weights))}


def _points(progress: Progress, weights: Mapping[Pair, int]) -> Iterable[tuple[float, float]]:
    """Yield the points. Until a task was first tried, it counts with what it took then."""
    best: dict[Pair, float] = {}
    for _, pair, seconds in progress.steps:
        best.setdefault(pair, seconds)
    if not best:
        return
    whole = shown = sum(weights[pair] * seconds for pair, seconds in best.items())
    yield 0.0, whole
    for at, pair, seconds in progress.steps:
        whole -= weights[pair] * (best[pair] - seconds)
        best[pair] = seconds
        if whole < shown * (1 - _STEP):
            shown = whole
            yield round(at, 3), whole
    yield round(progress.active, 3), whole
