"""What others do: where their strategies put what."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest

from tuner.errors import BadInput
from tuner.studies.baselines import BASELINES, strategy_of
from tuner.studies.baselines.additive import additive
from tuner.studies.baselines.whole import whole
from tuner.studies.networks import Network, network
from tuner.studies.networks.operators import Builder
from tuner.studies.simulator import Simulator
from tuner.studies.soap import PartConfig, strategy_from, strategy_json
from tuner.studies.topology import Topology, topology_of

K80 = topology_of("k80-cpu:4")


def places(net: Network, strategy: tuple[PartConfig, ...], kind: str) -> list[set[int]]:
    return [set(c.devices) for o, c in zip(net.operators, strategy, strict=True) if o.kind == kind]


def lacking(topology: Topology, kind: str, *kinds: str) -> Topology:
    """Devices of a kind cannot compute operators of these kinds."""
    devices = tuple(replace(d, lacks=frozenset(kinds)) if d.kind == kind else d for d in topology.devices)
    return replace(topology, devices=devices)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("name", ["alexnet", "nmt"])
def test_every_baseline_is_a_strategy(name: str, baseline: str) -> None:
    if baseline.startswith("metis"):
        pytest.importorskip("pymetis")
    net = network(name, **({"steps": 2} if name == "nmt" else {}))
    strategy = strategy_of(baseline, net, K80)
    assert strategy_from(strategy_json(net, K80, strategy), net, K80) == strategy
    assert Simulator(net, K80, training=True).start(strategy) > 0


def test_one_device_has_all_and_what_it_lacks_falls_back() -> None:
    net = network("alexnet")
    assert {c.devices for c in strategy_of("cpu", net, K80)} == {(0,)}
    assert {c.devices for c in strategy_of("gpu", net, K80)} == {(1,)}
    for o, config in zip(net.operators, strategy_of("fallback", net, lacking(K80, "gpu", "pool")), strict=True):
        assert config.devices == ((0,) if o.kind == "pool" else (1,))
    with pytest.raises(BadInput, match="no device of kind 'cpu'"):
        strategy_of("cpu", net, topology_of("p100"))
    with pytest.raises(BadInput, match="give one of single"):
        strategy_of("best", net, K80)


@pytest.mark.parametrize("baseline", [b for b in BASELINES if b != "cpu"])
@pytest.mark.parametrize(("name", "kind"), [("alexnet", "pool"), ("rnntc", "lstm"), ("lenet", "matmul")])
def test_what_gpus_lack_is_the_cpus_in_every_baseline(baseline: str, name: str, kind: str) -> None:
    if baseline.startswith("metis"):
        pytest.importorskip("pymetis")
    net = network(name, **({"steps": 2} if name == "rnntc" else {}))
    topology = lacking(K80, "gpu", kind)
    strategy = strategy_of(baseline, net, topology)
    assert set().union(*places(net, strategy, kind)) == {0}
    Simulator(net, topology, training=True).start(strategy)


@pytest.mark.parametrize("baseline", BASELINES)
def test_an_operator_that_no_device_computes_is_told(baseline: str) -> None:
    if baseline.startswith("metis"):
        pytest.importorskip("pymetis")
    nowhere = lacking(lacking(K80, "gpu", "pool"), "cpu", "pool")
    with pytest.raises(BadInput, match=r"k80-cpu:4: no device computes pool \('pool1'\)"):
        strategy_of(baseline, network("alexnet"), nowhere)


def test_data_parallel_splits_samples_alone() -> None:
    net = network("alexnet")
    for config in strategy_of("data_parallel", net, topology_of("p100:8")):
        assert config.degrees[0] == 8
        assert set(config.degrees[1:]) == {1}


def test_experts_split_dense_layers_along_parameters() -> None:
    net = network("alexnet")
    for o, config in zip(net.operators, strategy_of("expert", net, topology_of("p100:8")), strict=True):
        assert config.degrees[:2] == ((1, 8) if o.kind == "matmul" else (8, 1))


def test_experts_put_a_recurrent_layer_on_a_device_of_each_node() -> None:
    net = network("rnntc", steps=3)
    strategy = strategy_of("expert", net, topology_of("p100:8"))
    found = {o.name: c for o, c in zip(net.operators, strategy, strict=True)}
    assert found["lstm0.1"] == PartConfig((2, 1), (0, 4))
    assert found["lstm3.2"] == PartConfig((2, 1), (3, 7))
    assert found["embed.0"].devices == (0, 4)
    assert found["softmax"].devices == (3, 7)
    one = {o.name: c for o, c in zip(net.operators, strategy_of("expert_placement", net, K80), strict=True)}
    assert [one[f"lstm{i}.0"].devices for i in range(4)] == [(1,), (2,), (3,), (4,)]


def test_experts_cut_image_networks_into_contiguous_parts() -> None:
    net = network("inception_v3")
    devices = [c.devices[0] for c in strategy_of("expert_placement", net, K80)]
    assert devices == sorted(devices)
    assert [devices.count(d) for d in (1, 2, 3, 4)] == [30, 30, 30, 30]


def test_the_additive_optimum_has_the_least_sum() -> None:
    """Of all placements of a small network on a CPU and a GPU: the sum of what tasks and transfers take."""
    b = Builder(4)
    x = b.dense(b.embed(5000, 256), 64)
    b.dense(b.dense(x, 2048), 2)
    net, topology = b.network("small"), topology_of("jetson-nano")
    simulator = Simulator(net, topology, training=True)

    def total(devices: tuple[int, ...]) -> float:
        simulator.start([whole(o, d) for o, d in zip(net.operators, devices, strict=True)])
        return sum(s.end - s.start for s in simulator.timeline().spans if s.kind != "update")

    found = tuple(c.devices[0] for c in additive(net, topology))
    assert total(found) == min(total(d) for d in itertools.product((0, 1), repeat=len(net.operators)))


def test_metis_balances_and_cuts_little() -> None:
    pytest.importorskip("pymetis")
    net = network("inception_v3")
    strategy = strategy_of("metis", net, topology_of("p100:4"))
    simulator = Simulator(net, topology_of("p100:4"), training=True)
    simulator.start(strategy)
    work = [simulator.timeline().busy()[f"gpu{i}"] for i in range(4)]
    assert max(work) < 1.5 * min(work)
    devices = [c.devices[0] for c in strategy]
    cut = sum(devices[u] != devices[v] for u, v, _ in simulator.blocks.edges)
    assert cut < len(simulator.blocks.edges) / 3


def test_metis_shares_work_out_to_the_workers_or_to_all_by_their_speed() -> None:
    """Mirhoseini et al.: "MinCut" leaves the CPU out, its "Scotch" does not."""
    pytest.importorskip("pymetis")
    net, two = network("inception_v3"), topology_of("k80-cpu:2")
    cpu_alone = Simulator(net, two, training=True)
    cpu_alone.start(strategy_of("gpu", net, two))
    total = cpu_alone.timeline().busy()["gpu0"]
    work = {}
    for baseline in ("metis", "metis_all"):
        strategy = strategy_of(baseline, net, two)
        work[baseline] = [sum(set(c.devices) == {d} for c in strategy) for d in range(3)]
    assert work["metis"][0] == 0
    assert 0 < work["metis_all"][0] < min(work["metis_all"][1:])
    even = replace(two, devices=tuple(replace(d, flops=4e12) for d in two.devices))
    simulator = Simulator(net, even, training=True)
    simulator.start(strategy_of("metis_all", net, even))
    assert simulator.timeline().busy()["cpu"] > 0.2 * total


def test_metis_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(BadInput, match=r"pip install 'edgetune\[metis\]'"):
        strategy_of("metis", network("lenet"), topology_of("p100"))
