"""Timelines in the Trace Event Format, which Perfetto and Chrome read: `chrome_trace`."""

from __future__ import annotations

from typing import Any

from tuner.module import Manifest
from tuner.module.timeline import HOST, Timeline

_HOST, _DEVICES, _EXPECTED = 1, 2, 3


def chrome_trace(manifest: Manifest, timeline: Timeline) -> dict[str, Any]:
    """Measured: the host's calls and the OpenCL devices' streams; beside them, what the plan expected: the times of the
    stored trials, one operator after another, on its device's track."""
    titles = {_HOST: "measured: host's calls", _DEVICES: "measured: OpenCL", _EXPECTED: "expected: stored trials"}
    events = [_named("process_name", pid, 0, title) for pid, title in titles.items()]
    tracks = sorted({span.track for span in timeline.spans if span.track != HOST})
    events += [_named("thread_name", _DEVICES, i, track) for i, track in enumerate(tracks)]
    for span in timeline.spans:
        where = (_HOST, 0) if span.track == HOST else (_DEVICES, tracks.index(span.track))
        events.append(_span(span.name, where, span.begin, span.seconds, {"layer": span.node} if span.node else {}))
    return {
        "traceEvents": [*events, *_expected(manifest)],
        "displayTimeUnit": "ms",
        "otherData": {"model": manifest.model["name"], "seconds": timeline.seconds},
    }


def _expected(manifest: Manifest) -> list[dict[str, Any]]:
    events = [_named("thread_name", _EXPECTED, i, device.name) for i, device in enumerate(manifest.devices)]
    at = 0.0
    for operator in manifest.operators:
        if operator.seconds is not None:
            args = {"known from": operator.source, "template": operator.config and operator.config.template}
            events.append(_span(operator.node, (_EXPECTED, operator.device), at, operator.seconds, args))
            at += operator.seconds
    return events


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, where: tuple[int, int], begin: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    """The format's times are microseconds."""
    place = {"pid": where[0], "tid": where[1]}
    return {"ph": "X", "name": name, "ts": begin * 1e6, "dur": seconds * 1e6, **place, "args": args}
