"""What the sections of the page collect their data from. Start at `Context`, which is made once for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import select

from templates.traffic import bytes_of
from tuner.precision import precision_of
from tuner.report.page.names import device_text, distinct_texts, flop_or_none
from tuner.report.page.networks import Task
from tuner.report.page.scan import Pair, Pass
from tuner.report.text import knobs_text
from tuning_db import schema
from tuning_db.record import CONDITION, DeviceKey, Workload
from tuning_db.store import Store

_TOGETHER = 500  # rows of one query


@dataclass(frozen=True)
class Context:
    """A database that has been read once, and what `collect` was given besides.

    - `found` has the results of the pass over the trials. Its pairs are ids of a workload and a device.
    - `networks` has how often each module computes its tasks, by its folder.
    - `benches` are what `tune bench --json` printed.
    - `roofs` has what `devices.roof.roof_of` measured, by the `key` of the DeviceKey.
    """

    store: Store
    found: Pass
    modules: Sequence[Path]
    networks: Mapping[str, Mapping[Task, int]]
    benches: Sequence[Mapping[str, Any]]
    roofs: Mapping[str, Mapping[str, Any]]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Return the pairs of the page's tasks, in their order."""
        return sorted(self.found.trials)

    @cached_property
    def task_of(self) -> dict[Pair, int]:
        """Return the indices of the page's tasks by their pairs."""
        return {pair: i for i, pair in enumerate(self.pairs)}

    @cached_property
    def _device_ids(self) -> list[int]:
        return sorted({device for _, device in [*self.found.trials, *self.found.pieces]})

    @cached_property
    def device_of(self) -> dict[int, int]:
        """Return the indices of the page's devices by their ids in the database."""
        return {device: i for i, device in enumerate(self._device_ids)}

    @cached_property
    def keys(self) -> list[DeviceKey]:
        """Return the keys of the page's devices, in their order."""
        return [self.found.devices[i] for i in self._device_ids]

    @cached_property
    def devices(self) -> list[dict[str, Any]]:
        """Return what the page says of its devices."""
        return [{**key.as_dict(), "name": device_text(key)} for key in self.keys]

    @cached_property
    def tasks(self) -> list[dict[str, Any]]:
        """Return what the page says of its tasks."""
        texts = distinct_texts(self.found.workloads[w] for w, _ in self.pairs)
        return [self._task(pair, texts) for pair in self.pairs]

    def _task(self, pair: Pair, texts: Mapping[Workload, str]) -> dict[str, Any]:
        found, workload, device = self.found, self.found.workloads[pair[0]], self.found.devices[pair[1]]
        best, effort = self.store.best(workload, device), found.efforts.get(pair)
        return {
            "id": f"{pair[0]}.{pair[1]}",
            "op": workload.op,
            "text": texts[workload],
            "precision": precision_of(workload.dtype),
            "device": self.device_of[pair[1]],
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

    def rows(self, idents: Sequence[int]) -> dict[int, Any]:
        """Return rows of the table of trials by their ids. Raises DatabaseError if the store cannot be read."""
        t = schema.trials
        names = ("id", "workload_id", "device_id", "config", "seconds", "failure_message", "created")
        found: dict[int, Any] = {}
        with self.store.reading() as connection:
            for at in range(0, len(idents), _TOGETHER):
                query = select(*(t.c[name] for name in names)).where(t.c.id.in_(idents[at : at + _TOGETHER]))
                found.update((row.id, row) for row in connection.execute(query))
        return found
