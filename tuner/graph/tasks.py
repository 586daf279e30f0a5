"""What there is to tune in a network: its distinct workloads. Start at `tasks_of`; `flop_table` is for reports."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.graph.fusion.fuse import FusedGraph
from tuner.tasks import Task
from tuning_db.record import Workload


@dataclass(frozen=True)
class FlopShare:
    """`flop`: of one call by the direct algorithm (0 where an operator has none); `share`: of all calls among the
    network's tasks (sums to 1)."""

    name: str
    workload: Workload
    occurrences: int
    flop: float
    share: float


def tasks_of(graph: FusedGraph) -> list[Task]:
    """The distinct workloads in the order of their first use, named after the first node that has them."""
    names: dict[Workload, str] = {}
    counts: dict[Workload, int] = {}
    for step in graph.tuned:
        names.setdefault(step.workload, step.node)
        counts[step.workload] = counts.get(step.workload, 0) + 1
    return [Task(workload, counts[workload], name) for workload, name in names.items()]


def flop_table(graph: FusedGraph) -> list[FlopShare]:
    """The tasks with their share of the network's floating-point operations, largest first."""
    rows = [(task, task.flop or 0.0) for task in tasks_of(graph)]
    total = sum(flop * task.occurrences for task, flop in rows) or 1.0
    table = [FlopShare(t.name, t.workload, t.occurrences, flop, flop * t.occurrences / total) for t, flop in rows]
    return sorted(table, key=lambda row: -row.share)
