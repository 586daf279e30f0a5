"""A simulated timeline that a person can look at. Start at `chrome_trace`: chrome://tracing and Perfetto open its
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tuner.studies.simulator.patterns import TICK, Pattern

if TYPE_CHECKING:
    from tuner.studies.simulator.blocks import Blocks


class Span(NamedTuple):
    """Describes one task: its name and kind, the name of its lane, and when it was ready, started and ended (ticks)."""

    name: str
    kind: str
    lane: str
    ready: int
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """The tasks of a simulation; a tick is `tick` seconds. Two timelines are equal if all their tasks are."""

    spans: tuple[Span, ...]
    tick: float

    @property
    def seconds(self) -> float:
        """Return when the last task ends."""
        return max((span.end for span in self.spans), default=0) * self.tick

    def busy(self) -> dict[str, float]:
        """Return the seconds that each lane works."""
        found: dict[str, float] = {}
        for span in self.spans:
            found[span.lane] = found.get(span.lane, 0.0) + (span.end - span.start) * self.tick
        return found


def timeline_of(blocks: Blocks, patterns: Sequence[Pattern], times: Sequence[np.ndarray]) -> Timeline:
    """Return the tasks of simulated patterns as a timeline, with their names, lanes and times."""
    lanes = (*blocks.topology.lanes, "exchange")
    spans = []
    for block, (pattern, found) in enumerate(zip(patterns, times, strict=True)):
        for task, (lane, (ready, start, end)) in enumerate(zip(pattern.lane.tolist(), found.tolist(), strict=True)):
            name, kind = _named(blocks, block, task, len(pattern.exe))
            spans.append(Span(name, kind, lanes[lane], ready, start, end))
    return Timeline(tuple(spans), TICK)


def _named(blocks: Blocks, block: int, task: int, tasks: int) -> tuple[str, str]:
    operators = blocks.network.operators
    if block < len(operators):
        parts = tasks // 2 if blocks.training else tasks
        kind = "forward" if task < parts else "backward"
        return f"{operators[block].name}[{task % parts}]", kind
    block -= len(operators)
    if block < len(blocks.edges):
        u, v, _ = blocks.edges[block]
        kind = "transfer" if not blocks.training or task < tasks // 2 else "gradient"
        return f"{operators[u].name} > {operators[v].name}", kind
    return blocks.layers[block - len(blocks.edges)].name, "update"


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline as a Chrome trace that `json.dump` can write: a row for every device and link, in
    microseconds."""
    lanes = {lane: i for i, lane in enumerate(dict.fromkeys(span.lane for span in timeline.spans))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": lane}} for lane, tid in lanes.items()
    ]
    scale = timeline.tick * 1e6
    for span in timeline.spans:
        at = {"pid": 0, "tid": lanes[span.lane], "ts": span.start * scale, "dur": (span.end - span.start) * scale}
        waited = {"waited_us": (span.start - span.ready) * scale}
        events.append({"ph": "X", "name": span.name, "cat": span.kind, **at, "args": waited})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
