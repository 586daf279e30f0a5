"""Record one inference as spans of time: when the host made each call, and when OpenCL devices computed it. Start at
`Timeline`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.devices.opencl.control import Launch
from tuner.devices.stopwatch import COPY

HOST = "host"
LABELS = {COPY: "copy between devices"}


@dataclass(frozen=True)
class Span:
    """A call or a kernel that ran during an inference. `track` is HOST, or "stream N" of the OpenCL devices. `begin` is
    given in seconds since the inference began. `node` is the layer that the span belongs to, or None where that is not
    known."""

    name: str
    track: str
    begin: float
    seconds: float
    node: str | None = None


@dataclass(frozen=True)
class Timeline:
    """The `spans` that make up one inference, which took `seconds`. The host's call of a GPU kernel only queues the
    kernel; the span on its stream's track says when it ran. Times of streams come from the device's clock. They are
    shifted so that the first kernel was queued when the host called it."""

    spans: tuple[Span, ...]
    seconds: float


class Recorder:
    """An instrument for the virtual machine that lets everything run unchanged and notes when each call begins and
    ends."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, float, bool]] = []  # name, begin, end, on a device other than the host
        self._began = self.start = time.perf_counter()

    def instrument(self, _function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        now = time.perf_counter()
        if before:
            self._began = now
        else:
            away = bool(arguments) and getattr(getattr(arguments[-1], "device", None), "type", "cpu") != "cpu"
            self.calls.append((name, self._began, now, away))
        return 0  # VMInstrumentReturnKind.NO_OP

    def host_spans(self, nodes: Sequence[str | None]) -> list[Span]:
        """Return the spans of the host's calls. `nodes` has the layer of each call, or None."""
        return [
            Span(node or LABELS.get(name, name), HOST, begin - self.start, end - begin, node)
            for (name, begin, end, _), node in zip(self.calls, nodes, strict=True)
        ]

    def device_spans(self, launches: Sequence[Launch]) -> list[Span]:
        first_call = next((begin for _, begin, _, away in self.calls if away), self.start)
        first_queued = min((launch.queued for launch in launches), default=0)
        shift = first_call - self.start - first_queued * 1e-9
        return [
            Span(
                launch.kernel,
                f"stream {launch.stream}",
                launch.started * 1e-9 + shift,
                (launch.ended - launch.started) * 1e-9,
            )
            for launch in launches
        ]
