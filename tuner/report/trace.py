"""Makes timelines in the Trace Event Format, which Perfetto and Chrome read. Start at `chrome_trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.module import Manifest
from tuner.module.timeline import HOST, Timeline
from tuner.report.simulated import Expected, simulated

_HOST, _DEVICES, _SIMULATED = 1, 2, 3


def chrome_trace(manifest: Manifest, timeline: Timeline, flow: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace of one inference, as it was measured and as it was expected.

    The measured part has the host's calls and the OpenCL devices' streams. The expected part is the module simulated by
    the times of the stored trials (`simulated`); its title says how much of the module has no such time. `flow` is what
    `page.flow.flow_of` returns.
    """
    expected, unknown = simulated(manifest, flow), _unknown(manifest, flow)
    told = ", ".join(f"{count} {what}" for what, count in unknown.items() if count)
    stored = "simulated: stored trials" + (f" (unknown: {told})" if told else "")
    titles = {_HOST: "measured: host's calls", _DEVICES: "measured: OpenCL", _SIMULATED: stored}
    events = [_named("process_name", pid, 0, title) for pid, title in titles.items()]
    tracks = sorted({span.track for span in timeline.spans if span.track != HOST})
    events += [_named("thread_name", _DEVICES, i, track) for i, track in enumerate(tracks)]
    for span in timeline.spans:
        where = (_HOST, 0) if span.track == HOST else (_DEVICES, tracks.index(span.track))
        events.append(
            _span(span.name, where, span.begin, seconds=span.seconds, args={"layer": span.node} if span.node else {})
        )
    return {
        "traceEvents": [*events, *_simulated(manifest, expected)],
        "displayTimeUnit": "ms",
        "otherData": {"model": manifest.model["name"], "seconds": timeline.seconds, "unknown": unknown},
    }


def _unknown(manifest: Manifest, flow: Mapping[str, Any]) -> dict[str, int]:
    """Count the parts of the module for which the simulation takes no time.

    These are layers of which no trial is stored (shipped configs, defaults), and what no template computes.
    """
    kinds = [node["kind"] for node in flow["nodes"]]
    layers = sum(operator.seconds is None for operator in manifest.operators)
    return {"layers": layers, "other steps": kinds.count("other"), "copies between devices": kinds.count("copy")}


def _simulated(manifest: Manifest, spans: Sequence[Expected]) -> list[dict[str, Any]]:
    """Return the simulated events: a track for every device, and one more for every further group of its stages."""
    tracks = sorted({(manifest.operators[s.operator].device, s.group) for s in spans})
    events = []
    for i, (device, group) in enumerate(tracks):
        name = manifest.devices[device].name + (f", group {group + 1}" if group else "")
        events.append(_named("thread_name", _SIMULATED, i, name))
    for span in spans:
        operator = manifest.operators[span.operator]
        where = _SIMULATED, tracks.index((operator.device, span.group))
        args = {"known from": operator.source, "template": operator.config and operator.config.template}
        events.append(_span(operator.node, where, span.begin, seconds=span.seconds, args=args))
    return events


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, where: tuple[int, int], begin: float, *, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    """Return the event of one span. `begin` and `seconds` are in seconds, the format's times in microseconds."""
    place = {"pid": where[0], "tid": where[1]}
    return {"ph": "X", "name": name, "ts": begin * 1e6, "dur": seconds * 1e6, **place, "args": args}
