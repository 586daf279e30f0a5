"""What the knobs of a template did to a task's times: `knob_view` of a sample of its trials."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Row = tuple[dict[str, Any], float]  # knobs by name, seconds a call

LEAST = 8  # trials that tell anything
MOST_VALUES = 40  # of one knob


def knob_view(rows: Sequence[Row]) -> dict[str, Any] | None:
    """`names` of the knobs that vary, the most important first; `values` of each, in order; `importance` of each: the
    share of the variance of log(seconds) that its values explain by themselves (the sum of squares between them over
    the whole, corrected for how many values there are: 0 is chance); `rows`: places of values, then seconds.

    None where there are too few trials, or no knob varies.
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
    """Numbers by their size, then words."""
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
