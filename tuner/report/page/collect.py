"""Collects what a report says, as JSON. Start at `collect`.

Times are in seconds, sizes in bytes, and moments in seconds since 1970. Devices and tasks are given by their indices in
"devices" and "tasks".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import select

from board_agent.parsing import parse_json
from templates.traffic import bytes_of
from tuner.module import read_manifest
from tuner.report.page.knobs import knob_view
from tuner.report.page.modules import module_view
from tuner.report.page.names import device_text, distinct_texts, flop_or_none, knobs_text
from tuner.report.page.reuse import layer_view, reuse_view
from tuner.report.page.scan import Pair, Pass, scan, thinned
from tuning_db import schema
from tuning_db.record import CONDITION, DeviceKey
from tuning_db.store import Store

FORMAT = 1
_LONGEST = 4000  # characters of a compiler's message
_TOGETHER = 500  # rows of one query


def collect(
    store: Store,
    modules: Sequence[Path] = (),
    benches: Sequence[Mapping[str, Any]] = (),
    roofs: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return everything that the page shows of a database and of built modules.

    `benches` are what `tune bench --json` printed. `roofs` has what `devices.roof.roof_of` measured, by the `key` of
    the DeviceKey. Raises DatabaseError if the store cannot be read, BadInput if a module cannot.
    """
    found = scan(store)
    pairs = sorted(found.trials)
    devices = sorted({device for _, device in [*pairs, *found.pieces]})
    keys = [found.devices[i] for i in devices]
    place = {device: i for i, device in enumerate(devices)}
    of_task = {pair: i for i, pair in enumerate(pairs)}
    texts = distinct_texts(found.workloads[w] for w, _ in pairs)
    tasks = [_task(store, found, pair, place=place, text=texts[found.workloads[pair[0]]]) for pair in pairs]
    return {
        "format": FORMAT,
        "made": datetime.now(UTC).timestamp(),
        "edgetune": version("edgetune"),
        "database": store.name,
        "devices": [{**key.as_dict(), "name": device_text(key)} for key in keys],
        "tasks": tasks,
        "curves": _curves(found, of_task),
        "failures": _failures(store, found, of_task),
        "knobs": _knobs(store, found, of_task),
        "roofs": _roofs(keys, tasks, roofs or {}),
        "drift": [_drift(found, device, place) for device in devices if device in found.bins],
        "pieces": [_piece(found, pair, seconds, place) for pair, seconds in found.pieces.items()],
        "reuse": _reuse(store, found, keys, place=place, modules=modules),
        "modules": [module_view(store, folder, benches) for folder in modules],
    }


def _task(store: Store, found: Pass, pair: Pair, *, place: Mapping[int, int], text: str) -> dict[str, Any]:
    workload, device = found.workloads[pair[0]], found.devices[pair[1]]
    best, effort = store.best(workload, device), found.efforts.get(pair)
    return {
        "id": f"{pair[0]}.{pair[1]}",
        "op": workload.op,
        "text": text,
        "dtype": workload.dtype,
        "device": place[pair[1]],
        "trials": found.trials[pair],
        "configs": found.configs.get(pair, 0),
        "failures": found.failed[pair],
        "effort": effort and effort.seconds,
        "building": effort and effort.build_seconds,
        "running": effort and effort.run_seconds,
        "began": found.began[pair] / 1e6,
        "first": found.first.get(pair),
        "flop": flop_or_none(workload),
        "bytes": bytes_of(workload),
        "best": best
        and {
            "seconds": best.seconds,
            "template": best.config.template,
            "knobs": knobs_text(best.config.knobs),
            "error": best.error,
            "marked": best.throttled,
            "condition": best.versions.get(CONDITION, ""),
            "searcher": best.searcher,
        },
    }


def _curves(found: Pass, of_task: Mapping[Pair, int]) -> list[dict[str, Any]]:
    return [
        {
            "task": of_task[pair],
            "searcher": searcher or "unknown",
            "seed": seed,
            "trials": curve.trials,
            "seconds": round(curve.last, 3),
            "points": [[n, round(at, 3), seconds] for n, at, seconds in curve.points],
        }
        for (pair, searcher, seed), curve in found.curves.items()
    ]


def _failures(store: Store, found: Pass, of_task: Mapping[Pair, int]) -> list[dict[str, Any]]:
    """Return failures by kind and template, the most frequent first: how many each task has, and examples."""
    rows = _rows(store, [i for idents in found.examples.values() for i in idents])
    listed = []
    for (kind, template), counts in sorted(found.failures.items(), key=lambda entry: -entry[1].total()):
        examples = []
        for row in (rows[i] for i in found.examples[kind, template]):
            message = _message_of(row.failure_message)
            cut = f" ... ({len(message):,} characters)" if len(message) > _LONGEST else ""
            examples.append(
                {
                    "id": row.id,
                    "task": of_task[row.workload_id, row.device_id],
                    "knobs": knobs_text(_knobs_of(row.config) or {}),
                    "message": message[:_LONGEST] + cut,
                    "when": row.created / 1e6,
                }
            )
        tasks = [[of_task[pair], count] for pair, count in counts.items()]
        listed.append(
            {"kind": kind, "template": template, "count": counts.total(), "tasks": tasks, "examples": examples}
        )
    return listed


def _knobs(store: Store, found: Pass, of_task: Mapping[Pair, int]) -> list[dict[str, Any]]:
    rows = _rows(store, [ident for heap in found.samples.values() for _, ident in heap])
    views = []
    for (pair, template), heap in sorted(found.samples.items()):
        sample = [rows[ident] for _, ident in sorted(heap, key=lambda entry: entry[1])]
        view = knob_view([(knobs, row.seconds) for row in sample if (knobs := _knobs_of(row.config)) is not None])
        if view is not None:
            of = found.succeeded[pair, template]
            views.append({"task": of_task[pair], "template": template, "of": of, **view})
    return views


def _knobs_of(config: Any) -> dict[str, Any] | None:
    """Return the knobs of a stored config, or None if something else was stored."""
    with suppress(TypeError, ValueError, KeyError):
        knobs = parse_json(config)["knobs"]
        return knobs if isinstance(knobs, dict) else None
    return None


def _message_of(stored: Any) -> str:
    """Return the message of a stored failure, or what is stored if that is no JSON."""
    with suppress(TypeError, ValueError):
        return str(parse_json(stored))
    return str(stored)


def _rows(store: Store, idents: Sequence[int]) -> dict[int, Any]:
    t = schema.trials
    names = ("id", "workload_id", "device_id", "config", "seconds", "failure_message", "created")
    found: dict[int, Any] = {}
    with store.reading() as connection:
        for at in range(0, len(idents), _TOGETHER):
            query = select(*(t.c[name] for name in names)).where(t.c.id.in_(idents[at : at + _TOGETHER]))
            found.update((row.id, row) for row in connection.execute(query))
    return found


def _roofs(
    devices: Sequence[DeviceKey], tasks: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the limits of each device: the measured ones, else the highest rates of any task's best.

    Rates of trials are lower than what the device can do.
    """
    roofs = []
    for i, device in enumerate(devices):
        if device.key in measured:
            roofs.append({"device": i, "measured": True, **measured[device.key]})
            continue
        best = [t for t in tasks if t["device"] == i and t["best"]]
        flops = [t["flop"] / t["best"]["seconds"] for t in best if t["flop"]]
        rates = [t["bytes"] / t["best"]["seconds"] for t in best if t["bytes"]]
        fastest = {"flops": max(flops, default=None), "bytes_per_second": max(rates, default=None)}
        roofs.append({"device": i, "measured": False, **fastest})
    return roofs


def _drift(found: Pass, device: int, place: Mapping[int, int]) -> dict[str, Any]:
    begin, end = found.spans[device]
    repeats = thinned(found.repeats[device])
    return {
        "device": place[device],
        "began": begin / 1e6,
        "ended": end / 1e6,
        "bins": found.bins[device],
        "marked": sum(marked for _, marked in found.bins[device]),
        "repeated": len(found.repeats[device]),
        "repeats": [[(at - begin) / 1e6, ratio, int(marked)] for at, ratio, marked in repeats],
    }


def _reuse(
    store: Store, found: Pass, keys: Sequence[DeviceKey], *, place: Mapping[int, int], modules: Sequence[Path]
) -> list[dict[str, Any]]:
    """Return the rows of `reuse_view` for the database's tasks, then those of `layer_view`, none twice."""
    workloads = [found.workloads[w] for w in sorted({w for w, _ in found.trials})]
    tried = {(found.workloads[w], place[d]) for w, d in found.trials}
    places = {key: i for i, key in enumerate(keys)}
    rows = reuse_view(store, keys, workloads, tried)
    for folder in modules:
        layers = layer_view(store, read_manifest(folder, check_files=False), places)
        rows += [row for row in layers if row not in rows]
    return rows


def _piece(found: Pass, pair: Pair, seconds: float, place: Mapping[int, int]) -> dict[str, Any]:
    workload = found.workloads[pair[0]]
    attrs = workload.attrs
    shown = {name: attrs[name] for name in ("operator", "reads", "shape", "before", "to", "bytes") if name in attrs}
    return {"op": workload.op, "text": knobs_text(shown), "device": place[pair[1]], "seconds": seconds}
