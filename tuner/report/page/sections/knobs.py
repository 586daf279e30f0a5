"""Collects what templates' knobs did to tasks' times. Start at `knob_view`, which takes a sample of the trials."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tuner.report.page.context import Context
from tuner.report.page.names import stored_knobs

Row = tuple[dict[str, Any], float]  # knobs by name, seconds a call

LEAST = 8  # fewer trials tell nothing
MOST_VALUES = 40  # of one knob


def collect(context: Context) -> dict[str, Any]:
    """Return "knobs": a `knob_view` for each task and template that has enough trials."""
    found = context.found
    rows = context.rows([ident for heap in found.samples.values() for _, ident in heap])
    views = []
    for (pair, template), heap in sorted(found.samples.items()):
        sample = [rows[ident] for _, ident in sorted(heap, key=lambda entry: entry[1])]
        view = knob_view([(knobs, row.seconds) for row in sample if (knobs := stored_knobs(row.config)) is not None])
        if view is not None:
            of = found.succeeded[pair, template]
            views.append({"task": context.task_of[pair], "template": template, "of": of, **view})
    return {"knobs": views}


def knob_view(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return how much each knob matters, and the values and times of all trials.

    - `names` has the knobs that vary and have at most MOST_VALUES values, the most important first.
    - `values` has the sorted values of each of these knobs.
    - `importance` has the share of the variance of log(seconds) that each knob's values explain by themselves: the sum
      of squares between the values over the whole, corrected for the number of values, so that 0 is chance.
    - `rows` has for each trial the index of each knob's value, then the seconds.

    Returns None if there are fewer than LEAST trials, or if no knob varies.
    """
    seen = {name: sorted({_word(knobs.get(name)) for knobs, _ in rows}, key=_order) for name in _names(rows)}
    varying = [name for name, values in seen.items() if 1 < len(values) <= MOST_VALUES]
    if len(rows) < LEAST or not varying:
        return None
    logs = [math.log(seconds) for _, seconds in rows]
    importance = {name: _explained([_word(k.get(name)) for k, _ in rows], logs) for name in varying}
    names = sorted(varying, key=lambda name: (-importance[name], name))
    places = {name: {value: i for i, value in enumerate(seen[name])} for name in names}
    return {
        "names": names,
        "values": [seen[name] for name in names],
        "importance": [importance[name] for name in names],
        "rows": [[*(places[n][_word(knobs.get(n))] for n in names), seconds] for knobs, seconds in rows],
    }


def _names(rows: Sequence[Row]) -> list[str]:
    return sorted({name for knobs, _ in rows for name in knobs})


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _order(word: str) -> tuple[bool, float, str]:
    """Return a sort key that puts numbers by their size before words."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    return (False, number, "") if math.isfinite(number) else (True, 0.0, word)


def _explained(values: Sequence[str], logs: Sequence[float]) -> float:
    groups: dict[str, list[float]] = defaultdict(list)
    for value, log in zip(values, logs, strict=True):
        groups[value].append(log)
    mean = sum(logs) / len(logs)
    whole = sum((log - mean) ** 2 for log in logs)
    within = sum(sum((log - sum(g) / len(g)) ** 2 for log in g) for g in groups.values())
    free = len(logs) - len(groups)
    if whole <= 0 or free <= 0:
        return 0.0
    return max(0.0, 1 - (within / free) / (whole / (len(logs) - 1)))
