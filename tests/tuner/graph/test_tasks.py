"""The tasks of a network: distinct workloads, how often, and their share of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from templates.workloads import anchor_of
from tests.tuner.graph.networks import Net
from tuner.graph import flop_table, tasks_of


def test_equal_workloads_are_one_task(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 8, 8), (3, 8), 1))
    for _ in range(3):
        x = net.op("Relu", net.conv(x, (8, 8), pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, net.conv(x, (8, 8), pads=[1, 1, 1, 1]))
    tasks = tasks_of(graph)
    assert [(t.name, t.occurrences) for t in tasks] == [("/conv_0/Conv", 1), ("/conv_2/Conv", 3), ("/conv_8/Conv", 1)]
    assert [t.workload for t in tasks] == list(dict.fromkeys(s.workload for s in graph.anchors))
    table = flop_table(graph)
    assert [row.name for row in table] == ["/conv_2/Conv", "/conv_8/Conv", "/conv_0/Conv"]
    assert sum(row.share for row in table) == pytest.approx(1)
    assert table[0].share == pytest.approx(3 * table[1].share)
    assert table[0].flop == anchor_of(table[0].workload).flop == 2 * 8 * 8 * 8 * 8 * 9


def test_a_network_without_anchors_has_no_tasks(tmp_path: Path) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.op("Relu", net.input(1, 3)))
    assert tasks_of(graph) == []
    assert flop_table(graph) == []
