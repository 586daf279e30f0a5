"""What a session tunes, and what a network consists of: `Task`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from templates.workloads import flop_of
from tuning_db.record import Workload


@dataclass(frozen=True)
class Task:
    """A workload to tune. `occurrences`: how often the network runs it; `name`: what a person calls it."""

    workload: Workload
    occurrences: int = 1
    name: str = ""

    @cached_property
    def flop(self) -> float | None:
        """Of one call, by the direct algorithm, see `flop_of`."""
        return flop_of(self.workload)
