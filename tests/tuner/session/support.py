"""Tasks of real templates, and sessions whose times are replayed from functions of the config, on a virtual clock."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import templates  # noqa: F401  registers the templates
from templates.template import all_templates
from templates.workloads import Conv2d, Dense
from tuner.devices import Device
from tuner.measure.replay.runner import ReplayRunner, computed
from tuner.measure.runner import Candidate
from tuner.session import Budget, SessionReport, Task, TuneOptions, tune
from tuning_db.record import Trial
from tuning_db.store import Store

CONV = Task(Conv2d(1, 32, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("bias", "relu")), 4, "conv")
POINT = Task(Conv2d(1, 64, 14, 14, 32, (1, 1)).workload(("bias",)), 2, "point")
SMALL = Task(Dense(4, 8, 16).workload(), 1, "small")  # a space of a dozen configs
STRANGE = Task(replace(SMALL.workload, op="softmax"), 1, "strange")

VERSIONS = {t.name: t.version for t in all_templates()}


def latency(candidate: Candidate) -> float:
    """1 to 2 microseconds per operation of the workload, by the config alone; every seventh does not compile."""
    text = candidate.workload.key + candidate.config.key
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    return (
        math.inf if number % 7 == 0 else 1e-6 * candidate.workload.attrs.get("kernel", (1,))[0] * (1 + number / 2**32)
    )


class WideReplay(ReplayRunner):
    """Measures `width` candidates at a time, and asks for half as many more ahead; what it was asked last ends first.
    `most`: how many were under way at a time, `tasks` of so many workloads."""

    most = tasks = 0
    width = 1  # every instance has its own

    def __init__(self, device: Device, width: int) -> None:
        super().__init__(device.key, computed(latency), VERSIONS)
        self.width = width
        self._under_way: list[Candidate] = []
        self._given = 0

    @property
    def ready(self) -> int:
        return self._given % 5

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        wanted, self._under_way = iter(candidates), []
        while True:
            self._under_way += islice(wanted, self.width + self.width // 2 - len(self._under_way))
            if not self._under_way:
                return
            self.most = max(self.most, len(self._under_way))
            self.tasks = max(self.tasks, len({c.workload for c in self._under_way}))
            self._given += 1
            yield from super().measure([self._under_way.pop()])


def replayed(
    device: Device,
    store: Store,
    tasks: list[Task],
    budget: Budget,
    seconds: Callable[[Candidate], float] = latency,
    **options: object,
) -> SessionReport:
    runner = ReplayRunner(device.key, computed(seconds), VERSIONS)
    return tune(tasks, device, store, runner, TuneOptions(budget=budget, clock=runner.clock, **options))  # type: ignore[arg-type]


def records(store: Store) -> list[Trial]:
    return list(store.trials())


def configs_tried(store: Store) -> int:
    return len({(t.workload.key, t.config.key) for t in store.trials()})
