"""Makes short texts for whatever a database holds, also for workloads of operators that are not known here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from board_agent.parsing import parse_json
from templates.workloads import STRANGE, flop_of
from tuner.report.text import knobs_text, workload_text
from tuning_db.record import DeviceKey, Workload


def distinct_texts(workloads: Iterable[Workload]) -> dict[Workload, str]:
    """Return the `workload_text` of each workload.

    Workloads with the same text also say what they differ in, as in "... 3x3/1 (padding=0x0x0x0)".
    """
    alike: dict[str, list[Workload]] = defaultdict(list)
    for workload in dict.fromkeys(workloads):
        alike[workload_text(workload)].append(workload)
    return {w: text + (f" ({_apart(w, same)})" if len(same) > 1 else "") for text, same in alike.items() for w in same}


def _apart(workload: Workload, others: Iterable[Workload]) -> str:
    """Return the attributes of `workload` that differ from those of the others, with its values."""
    told = [{"dtype": w.dtype, "epilogue": w.epilogue, **w.attrs} for w in (workload, *others)]
    differs = [n for n in dict.fromkeys(n for t in told for n in t) if any(t.get(n) != told[0].get(n) for t in told)]
    values = {n: told[0].get(n, "none") for n in differs}
    return knobs_text({n: "x".join(map(str, v)) if isinstance(v, tuple | list) else v for n, v in values.items()})


def flop_or_none(workload: Workload) -> float | None:
    """Return `flop_of` a workload.

    Returns None also for a workload that cannot be read, as of another version, and for sizes that no operator has.
    """
    try:
        flop = flop_of(workload)
    except STRANGE:
        return None
    return flop if flop is not None and flop > 0 else None


def device_text(device: DeviceKey) -> str:
    """Return a device's kind and model, and its threads or its platform.

    Two keys of one CPU differ in their threads.
    """
    threads = device.attrs.get("threads")
    platform = device.attrs.get("platform")
    more = "" if platform is None else f", {platform}"
    if threads is not None:
        more = f", {threads} thread{'' if threads == 1 else 's'}"
    return f"{device.kind} {device.model}{more}"


def stored_knobs(config: Any) -> dict[str, Any] | None:
    """Return the knobs of a config as a database stores it, or None if something else was stored."""
    with suppress(TypeError, ValueError, KeyError):
        knobs = parse_json(config)["knobs"]
        return knobs if isinstance(knobs, dict) else None
    return None
