"""Short texts for what a database holds, whatever it holds: workloads of operators that are not known here, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
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


def distinct_texts(workloads: Iterable[Workload]) -> dict[Workload, str]:
    """As `workload_text`; those that would have one text say what they differ in: "... 3x3/1 (padding=0x0x0x0)"."""
    alike: dict[str, list[Workload]] = defaultdict(list)
    for workload in dict.fromkeys(workloads):
        alike[workload_text(workload)].append(workload)
    return {w: text + (f" ({_apart(w, same)})" if len(same) > 1 else "") for text, same in alike.items() for w in same}


def _apart(workload: Workload, others: Iterable[Workload]) -> str:
    """What others have otherwise."""
    told = [{"dtype": w.dtype, "epilogue": w.epilogue, **w.attrs} for w in (workload, *others)]
    differs = [n for n in dict.fromkeys(n for t in told for n in t) if any(t.get(n) != told[0].get(n) for t in told)]
    values = {n: told[0].get(n, "none") for n in differs}
    return knobs_text({n: "x".join(map(str, v)) if isinstance(v, tuple | list) else v for n, v in values.items()})


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
    """All knobs as "name=value, ...", none as "-"."""
    return ", ".join(f"{name}={value}" for name, value in knobs.items()) or "-"
