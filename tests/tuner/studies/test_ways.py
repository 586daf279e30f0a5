"""Ways of placing: never slower in the simulator than what needs no search, memory is kept to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tuner.graph.networks import Net
from tests.tuner.graph.test_placed import branches
from tests.tuner.studies.test_known import convolutions, truth
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.placement.fallback import CPU, GPU, operator_of
from tuner.placement.memory import memory_on
from tuner.studies.baselines.whole import whole
from tuner.studies.estimated_network import Estimates, estimated_network
from tuner.studies.simulator import Simulator
from tuner.studies.strategies import WAYS, PlacementResult, PlaceOptions, check_known, place
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology
from tuning_db.record import Config, Trial
from tuning_db.store import open_db

NAMES = ("opencl:0", "cpu")
Place = Callable[..., PlacementResult]


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device(NAMES[0]), open_device(NAMES[1], 1)]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    net, output = branches()
    return net.graph(tmp_path_factory.mktemp("ways"), output)


def topology(latency: float) -> Topology:
    specs = tuple(DeviceSpec(n, n, 1e11, 1e10, n) for n in NAMES)
    links = tuple(Link(a, b, 1e10, latency) for a, b in (NAMES, NAMES[::-1]))
    return Topology("here", specs, tuple(Memory(n) for n in NAMES), links)


def placed(
    way: str,
    graph: FusedGraph,
    devices: list[Device],
    folder: Path,
    latency: float = 1e-7,
    slow: float = 1.1,
    limit: float = 1.0,
    here: Topology | None = None,
) -> PlacementResult:
    """By a database in which the CPU takes `slow` times as long. `here`: instead of `topology`."""
    with open_db(folder / "t.db") as store:
        for device, factor in zip(devices, (1.0, slow), strict=True):
            for w in convolutions():
                store.add(Trial(w, device.key, Config("some", {}), 1, (factor * truth(w),), error=1e-6))
        return place(
            way, graph, devices, topology=here or topology(latency), store=store, options=PlaceOptions(seconds=limit)
        )


def simulator_of(graph: FusedGraph, devices: list[Device], folder: Path, here: Topology) -> Simulator:
    """By the same database, with memories without an end."""
    free = replace(here, memories=tuple(Memory(m.name) for m in here.memories))
    with open_db(folder / "t.db") as store:
        given = estimated_network(graph, devices, free, store)
    return Simulator(given.network, given.topology, given.cost)


def seconds(simulator: Simulator, placement: tuple[int, ...]) -> float:
    each = zip(simulator.network.operators, placement, strict=True)
    return simulator.start([whole(o, d) for o, d in each])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", ["exact", "mcmc"])
@pytest.mark.parametrize("latency", [1e-7, 1e-2])
def test_nothing_is_slower_than_what_needs_no_search(
    graph: FusedGraph, devices: list[Device], tmp_path: Path, way: str, latency: float
) -> None:
    found = placed(way, graph, devices, tmp_path, latency)
    simulator = simulator_of(graph, devices, tmp_path, topology(latency))
    count = len(graph.steps)
    assert found.simple == {
        "opencl:0 alone": seconds(simulator, (GPU,) * count),
        "cpu alone": seconds(simulator, (CPU,) * count),
        "fallback": seconds(simulator, (GPU,) * count),
    }
    assert found.seconds <= min(found.found, *found.simple.values())
    assert (found.taken == way) == (found.seconds < min(found.simple.values()))
    if not found.split.whole:
        assert found.seconds == seconds(simulator, found.placement)
    if latency == 1e-2:  # no step is worth a copy
        assert set(found.placement) == {GPU}
        assert found.taken != way
        assert "no gain" in found.text()


def test_both_work_at_the_same_time(graph: FusedGraph, devices: list[Device], tmp_path: Path) -> None:
    """Branches, nearly as fast on both: the search finds what is faster than any one device, the sum sees no gain."""
    found = placed("mcmc", graph, devices, tmp_path, limit=2.0)
    assert found.taken == "mcmc"
    summed = placed("exact", graph, devices, tmp_path)
    assert found.found < summed.seconds == summed.simple["opencl:0 alone"]


def large(folder: Path) -> FusedGraph:
    """A chain of convolutions: no two of them can be computed at the same time but in parts."""
    net = Net()
    x = net.input(1, 64, 56, 56)
    for _ in range(2):
        x = net.op("Relu", net.conv(x, (64, 64), pads=[1, 1, 1, 1]))
    return net.graph(folder, x)


def test_steps_in_parts_are_taken_where_they_are_faster(devices: list[Device], tmp_path: Path) -> None:
    """Links cost next to nothing: what is built is simulated as it is built, each part where it is."""
    graph = large(tmp_path)
    found = placed("mcmc", graph, devices, tmp_path, latency=1e-9, slow=2.0, limit=4.0)
    assert found.taken == "mcmc"
    assert found.split.whole
    assert found.in_parts == found.seconds < found.found
    assert "steps are split" in found.text()
    assert len(found.placement) == len(found.split.graph.steps) > len(graph.steps)
    with open_db(tmp_path / "t.db") as store:
        estimates = Estimates(devices, topology(1e-9), store, graph.dtype)
        parts = estimates.network(found.split.graph, found.split.whole)
    assert seconds(Simulator(parts.network, parts.topology, parts.cost), found.placement) == found.seconds


def test_steps_in_parts_are_left_where_copies_cost_more(devices: list[Device], tmp_path: Path) -> None:
    found = placed("mcmc", large(tmp_path), devices, tmp_path, latency=1e-2, slow=2.0)
    assert not found.split.whole
    assert set(found.placement) == {GPU}


@pytest.mark.sampled(2)
def test_rows_are_split_all_together_where_copies_cost(devices: list[Device], tmp_path: Path) -> None:
    """Half of a value takes as long to copy as a convolution: no step is worth being split alone, nor are two."""
    net = Net()
    x = net.input(1, 4, 56, 56)
    for read, made in pairwise((4, 64, 64, 64, 64, 4)):
        x = net.op("Relu", net.conv(x, (read, made), pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, x)
    rate = 4e5 / truth(graph.anchors[1].workload)
    slow = replace(topology(1e-7), links=tuple(Link(a, b, rate, 1e-7) for a, b in (NAMES, NAMES[::-1])))
    with open_db(tmp_path / "t.db") as store:
        for device in devices:
            for w in convolutions():
                store.add(Trial(w, device.key, Config("some", {}), 1, (truth(w),), error=1e-6))
        found = place("mcmc", graph, devices, topology=slow, store=store, options=PlaceOptions(seconds=4.0))
    assert found.taken == "mcmc"
    assert found.in_parts == found.seconds < 0.9 * found.found
    parts = [step.node for step in found.split.graph.anchors if step.out in found.split.whole]
    assert parts
    assert all("[rows " in node for node in parts)


def wide(folder: Path) -> FusedGraph:
    """Three convolutions, of which the second makes 2 MiB."""
    net = Net()
    x = net.conv(net.input(1, 3, 64, 64), (3, 16), 1)
    for channels in ((16, 128), (128, 16)):
        x = net.conv(x, channels, 1)
    return net.graph(folder, x)


def with_memories(gpu: float, cpu: float) -> Topology:
    return replace(topology(1e-7), memories=(Memory(NAMES[GPU], gpu), Memory(NAMES[CPU], cpu)))


def shared(here: Topology, size: float = math.inf) -> Topology:
    """One memory for both devices."""
    return replace(here, devices=tuple(replace(d, memory="ram") for d in here.devices), memories=(Memory("ram", size),))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("said_by", ["device", "topology"])
def test_memory_is_kept_to(devices: list[Device], tmp_path: Path, said_by: str) -> None:
    """The CPU takes ten times as long."""
    graph, here = wide(tmp_path), topology(1e-7) if said_by == "device" else with_memories(1 << 20, math.inf)
    small = [replace(devices[0], memory_bytes=1 << 20), devices[1]] if said_by == "device" else devices
    for way in ("exact", "mcmc"):
        found = placed(way, graph, small, tmp_path, slow=10.0, here=here)
        assert found.simple["opencl:0 alone"] == math.inf
        assert memory_on(graph, found.placement, GPU) <= 1 << 20
        assert set(found.placement) == {GPU, CPU}
        assert found.seconds <= found.simple["fallback"]
        free = placed(way, graph, devices, tmp_path, slow=10.0)
        assert set(free.placement) == {GPU}


@pytest.mark.sampled(2)
def test_the_cpus_memory_is_kept_to(devices: list[Device], tmp_path: Path) -> None:
    """The CPU takes a tenth as long, and has no room for the second convolution."""
    graph = wide(tmp_path)
    for way in ("exact", "mcmc"):
        found = placed(way, graph, devices, tmp_path, slow=0.1, here=with_memories(math.inf, 1 << 20))
        assert found.simple["cpu alone"] == found.found == math.inf
        assert set(found.placement) == {GPU}
        assert not found.split.whole
        free = placed(way, graph, devices, tmp_path, slow=0.1)
        assert set(free.placement) == {CPU}


@pytest.mark.sampled(2)
def test_what_devices_need_of_a_memory_that_they_share_is_added_up(
    graph: FusedGraph, devices: list[Device], tmp_path: Path
) -> None:
    """Branches on both devices are faster, but copies of values need room too."""
    one = memory_on(graph, [GPU] * len(graph.steps), GPU)
    free = placed("mcmc", graph, devices, tmp_path, limit=2.0, here=shared(topology(1e-7)))
    assert set(free.placement) == {GPU, CPU}
    assert sum(memory_on(free.split.graph, free.placement, d) for d in (GPU, CPU)) > one
    found = placed("mcmc", graph, devices, tmp_path, limit=2.0, here=shared(topology(1e-7), one))
    assert len(set(found.placement)) == 1
    assert found.found == math.inf or found.taken != "mcmc"


@pytest.mark.night
def test_where_nothing_fits_the_memory_and_what_is_needed_of_it_are_told(devices: list[Device], tmp_path: Path) -> None:
    graph = wide(tmp_path)
    needs = memory_on(graph, [GPU] * len(graph.steps), GPU)
    for here, message in (
        (shared(topology(1e-7), 10), f"here: memory 'ram' has 10 bytes, the network needs {needs}: correct its bytes"),
        (with_memories(10, 11), f"here: memory 'cpu' has 11 bytes, the network needs {needs}: "),
        (with_memories(needs - 1, needs - 1), None),  # together there is enough, and parts of the network fit
        (with_memories(1 << 20, 1 << 20), f"here: memory 'cpu' has {1 << 20} bytes, the network needs "),
    ):
        for way in ("exact", "mcmc"):
            if message is None:
                found = placed(way, graph, devices, tmp_path, here=here)
                assert set(found.placement) == {GPU, CPU}
                continue
            with pytest.raises(BadInput) as caught:
                placed(way, graph, devices, tmp_path, here=here)
            assert str(caught.value).startswith(message)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["exact", "mcmc"])
@pytest.mark.parametrize("lacking", [GPU, CPU])
def test_what_the_topology_says_that_a_device_lacks_is_not_placed_there(
    graph: FusedGraph, devices: list[Device], tmp_path: Path, way: str, lacking: int
) -> None:
    """The device that lacks convolutions would be ten times as fast."""
    here = topology(1e-7)
    specs = [replace(d, lacks=frozenset({"conv2d"} if i == lacking else {})) for i, d in enumerate(here.devices)]
    slow = 10.0 if lacking == GPU else 0.1
    found = placed(way, graph, devices, tmp_path, slow=slow, here=replace(here, devices=tuple(specs)))
    placed_at = zip(found.split.graph.steps, found.placement, strict=True)
    assert {device for step, device in placed_at if operator_of(step) == "conv2d"} == {1 - lacking}
    assert found.simple[f"{NAMES[lacking]} alone"] == math.inf
    assert math.isfinite(found.simple["fallback"])


@pytest.mark.sampled(2)
def test_devices_that_draw_on_one_memory_are_compared_with_its_rate_shared(
    graph: FusedGraph, devices: list[Device], tmp_path: Path
) -> None:
    """The memory moves as much as one of them asks for: no split is faster than one device, as it is if each has a
    memory of its own."""
    here = topology(1e-9)
    slow_memory = replace(here, devices=tuple(replace(d, bandwidth=1e3) for d in here.devices))
    alone = placed("mcmc", graph, devices, tmp_path, limit=2.0, here=slow_memory)
    assert alone.taken == "mcmc"
    both = placed("mcmc", graph, devices, tmp_path, limit=2.0, here=shared(slow_memory))
    assert both.taken != "mcmc"
    assert both.found >= min(both.simple.values()) * (1 - 1e-6)
    cores = shared(replace(slow_memory, devices=tuple(replace(d, cores="host") for d in slow_memory.devices)))
    turns = placed("mcmc", graph, devices, tmp_path, here=cores)
    assert turns.seconds == seconds(simulator_of(graph, devices, tmp_path, cores), turns.placement)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("memories", ["own", "shared"])
def test_the_timeline_is_that_of_what_is_taken(
    graph: FusedGraph, devices: list[Device], tmp_path: Path, memories: str
) -> None:
    here = topology(1e-7) if memories == "own" else shared(topology(1e-7))
    found = placed("mcmc", graph, devices, tmp_path, limit=2.0, here=here)
    timeline = found.timeline()
    assert timeline.seconds == pytest.approx(found.seconds, rel=1e-6)
    computed = [span for span in timeline.spans if span.kind == "forward"]
    assert [span.lane for span in computed] == [NAMES[d] for d in found.placement]


def test_every_way_is_known_and_too_few_trials_are_told(devices: list[Device], tmp_path: Path) -> None:
    assert set(WAYS) == {"exact", "mcmc", "learned"}
    with open_db(tmp_path / "t.db") as store:
        store.add(Trial(convolutions()[0], devices[0].key, Config("some", {}), 1, (1e-3,), error=1e-6))
        with pytest.raises(BadInput, match="device 'opencl:0': a roofline needs 4 measured workloads, not 1"):
            check_known(store, devices, "float32")
