"""List the distinct workloads of a network, each of which is one tuning task.

Start at `tasks_of`. `tasks_of_both` is for networks whose precisions are chosen, and `flop_table` for reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from tuner.graph.fusion.float_forms import float_form
from tuner.graph.fusion.steps import FusedGraph
from tuner.tasks import Task
from tuning_db.record import Workload


@dataclass(frozen=True)
class FlopShare:
    """A row of `flop_table`, which describes one distinct workload of a network.

    `flop` is the number of floating-point operations of one call by the direct algorithm (0 if the operator has none).
    `share` is the fraction of the network's operations that all calls of the workload make up; the shares sum to 1.
    """

    name: str
    workload: Workload
    occurrences: int
    flop: float
    share: float


def tasks_of(graph: FusedGraph) -> list[Task]:
    """Return the distinct workloads in the order of their first use, each named after the first node that has it."""
    return _tasks((step.workload, step.node) for step in graph.tuned)


def tasks_of_both(graph: FusedGraph) -> list[Task]:
    """Return `tasks_of` a graph, and the tasks of its anchors of integers in float32, of which a build may choose."""
    forms = ((form.workload, step.node) for step in graph.anchors if (form := float_form(step)) is not None)
    return _tasks(chain(((step.workload, step.node) for step in graph.tuned), forms))


def _tasks(uses: Iterable[tuple[Workload, str]]) -> list[Task]:
    names: dict[Workload, str] = {}
    counts: dict[Workload, int] = {}
    for workload, node in uses:
        names.setdefault(workload, node)
        counts[workload] = counts.get(workload, 0) + 1
    return [Task(workload, counts[workload], name) for workload, name in names.items()]


def flop_table(graph: FusedGraph) -> list[FlopShare]:
    """Return the tasks with their shares of the network's floating-point operations, the largest share first."""
    rows = [(task, task.flop or 0.0) for task in tasks_of(graph)]
    total = sum(flop * task.occurrences for task, flop in rows) or 1.0
    table = [FlopShare(t.name, t.workload, t.occurrences, flop, flop * t.occurrences / total) for t, flop in rows]
    return sorted(table, key=lambda row: -row.share)
