"""What placements need of a device's memory, and plans that keep to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.ir import Var

from tests.tuner.graph.networks import Net
from tests.tuner.graph.test_placed import branches
from tests.tuner.placement.test_exact import LINKS
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.graph.fusion.steps import reads_of
from tuner.graph.layout.choice import rivals
from tuner.placement.exact import plan_network
from tuner.placement.fallback import CPU, GPU, fall_back
from tuner.placement.memory import bytes_of, memory_on, weights_of
from tuner.placement.step_costs import Costs
from tuning_db.store import Store, open_db


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    net, output = branches()
    return net.graph(tmp_path_factory.mktemp("net"), output)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "t.db") as found:
        yield found


def needed_at(graph: FusedGraph, placement: list[int], device: int, at: int) -> set[Var]:
    """The values that a device must hold while a step is computed: those of its own steps, from the first of them that
    makes or reads a value to the last step anywhere that reads it."""
    steps = list(zip(graph.steps, placement, strict=True))
    found = set()
    for var in {v for step, _ in steps for v in (*reads_of(step), step.out)}:
        here = [i for i, (s, d) in enumerate(steps) if d == device and (var is s.out or var in reads_of(s))]
        if not here:
            continue
        reading = [i for i, (s, _) in enumerate(steps) if var in reads_of(s) and i > min(here)]
        end = len(steps) if var in graph.outputs else max([*here, *reading])
        if min(here) <= at <= end:
            found.add(var)
    return found


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_weights_and_what_lives_at_once(graph: FusedGraph, data: st.DataObject) -> None:
    placement = data.draw(st.lists(st.integers(0, 1), min_size=len(graph.steps), max_size=len(graph.steps)))
    for device in (0, 1):
        weights = sum(weights_of(s) for s, d in zip(graph.steps, placement, strict=True) if d == device)
        living = [
            sum(bytes_of(v.ty) for v in needed_at(graph, placement, device, i)) for i in range(len(graph.steps) + 1)
        ]
        assert memory_on(graph, placement, device) == weights + max(living)


def test_what_does_not_fit_falls_back(graph: FusedGraph) -> None:
    gpu = open_device("opencl:0").target
    whole = memory_on(graph, [GPU] * len(graph.steps), GPU)
    assert CPU not in fall_back(graph, gpu, (), whole)
    placement = fall_back(graph, gpu, (), whole - 1)
    assert placement == sorted(placement)
    assert {GPU, CPU} == set(placement)
    assert memory_on(graph, placement, GPU) < whole
    assert set(fall_back(graph, gpu, (), 0)) == {CPU}


def limited(device: Device, memory: int) -> Device:
    return replace(device, memory_bytes=memory)


def test_plans_keep_to_a_devices_memory(tmp_path: Path, store: Store) -> None:
    """A GPU that is faster at everything, but has not enough memory for all."""
    net = Net()
    x = net.input(1, 16, 10, 10)
    for _ in range(4):
        x = net.op("Relu", net.conv(x, (16, 16), pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, x)
    gpu, cpu = open_device("opencl:0"), open_device("cpu", 1)
    chosen = [rivals((s.workload for s in graph.tuned), d, store) for d in (gpu, cpu)]
    fast, slow = (
        {w: tuple(replace(c, seconds=seconds) for c in choices) for w, choices in known.items()}
        for known, seconds in zip(chosen, (1e-6, 1.0), strict=True)
    )
    costs = Costs([gpu, cpu], store, links=LINKS)
    free = plan_network(graph, [gpu, cpu], [fast, slow], costs)
    needed = memory_on(graph, free.planned.placement, GPU)
    assert CPU not in free.planned.placement
    found = plan_network(graph, [limited(gpu, needed - 1), cpu], [fast, slow], costs)
    assert 0 < memory_on(graph, found.planned.placement, GPU) < needed
    assert list(found.planned.placement).count(CPU) == 1
    assert found.plan.bound == free.plan.seconds < found.plan.seconds
    assert not found.plan.optimal
    with pytest.raises(BadInput, match="no plan fits into the memory of its devices"):
        plan_network(graph, [limited(gpu, needed - 1)], [fast], Costs([gpu], store))
