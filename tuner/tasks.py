"""Define `Task`, the unit that a session tunes and that a network consists of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from templates.workloads import flop_of
from tuning_db.record import Workload


@dataclass(frozen=True)
class Task:
    """A workload that is to be tuned. `occurrences` is how often the network runs it. `name` is what it is called in
    output for people."""

    workload: Workload
    occurrences: int = 1
    name: str = ""

    @cached_property
    def flop(self) -> float | None:
        """Return the operations of one call by the direct algorithm, or None where `flop_of` does not know them."""
        return flop_of(self.workload)
