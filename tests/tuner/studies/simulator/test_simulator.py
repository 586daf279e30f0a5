"""The simulator against a second one, against itself, and on graphs that can be counted by hand."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.tuner.studies.simulator.reference import simulated
from tuner.errors import BadInput
from tuner.studies.networks import Network, network
from tuner.studies.networks.operators import Builder, NetworkOperator
from tuner.studies.simulator import Roofline, Simulator
from tuner.studies.simulator.timeline import chrome_trace
from tuner.studies.soap import PartConfig, random_config, random_strategy
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology, topology_of

# The benchmark's 10,000 take some minutes; as many as this find every fault that was ever there.
EDITS = int(os.environ.get("EDGETUNE_TEST_EDITS", "400"))
SMALL = {"strided": {}, "lenet": {}, "rnnlm": {"steps": 3}, "nmt": {"steps": 2}, "inception_v3": {"batch": 8}}


def small(name: str) -> Network:
    return strided() if name == "strided" else network(name, **SMALL[name])


def strided() -> Network:
    """Rows that nobody reads, or somebody, which depends on how the reader is cut: of pool2's four, the second is read
    by conv3 in one part, and by none of its parts where there is one for each row."""
    b = Builder(2)
    x = b.pool(b.conv(b.image(4, 8), 4, 1, name="conv1"), 2, 2, name="pool2")
    b.dense(b.conv(x, 8, 1, 2, name="conv3"), 10, name="dense4")
    return b.network("strided")


def test_an_operator_on_a_device_that_lacks_it_is_refused() -> None:
    net, whole = network("lenet"), topology_of("k80-cpu:2")
    devices = tuple(replace(d, lacks=frozenset({"pool"})) if d.kind == "gpu" else d for d in whole.devices)
    simulator = Simulator(net, replace(whole, devices=devices))
    with pytest.raises(BadInput, match=r"k80-cpu:2: gpu0 cannot compute pool \('pool1'\)"):
        simulator.start([PartConfig((1,) * len(o.shape), (1,)) for o in net.operators])
    on_cpu = [PartConfig((1,) * len(o.shape), (0 if o.kind == "pool" else 1,)) for o in net.operators]
    seconds = simulator.start(on_cpu)
    with pytest.raises(BadInput, match=r"gpu1 cannot compute pool \('pool2'\)"):
        simulator.propose({3: PartConfig((1,) * 4, (2,))})
    assert simulator.start(on_cpu) == seconds


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_timelines_are_those_of_the_plain_algorithm(name: str, training: bool) -> None:
    net, topology, rng = small(name), topology_of("k80:8"), random.Random(name)
    simulator = Simulator(net, topology, training=training)
    for _ in range(3):
        strategy = random_strategy(net, topology, rng)
        seconds = simulator.start(strategy)
        expected = simulated(simulator.blocks, strategy)
        spans = simulator.timeline().spans
        assert [(s.ready, s.start, s.end) for s in spans] == [expected[task] for task in sorted(expected)]
        assert seconds == max(end for _, _, end in expected.values()) * 1e-12


def on_shared_cores(count: int) -> Topology:
    """The first two of so many GPUs compute on the same cores, which also make the copies between them."""
    found = topology_of(f"p100:{count}")
    devices = tuple(replace(d, cores="cores") if i < 2 else d for i, d in enumerate(found.devices))
    pair = {"gpu0", "gpu1"}
    links = tuple(replace(k, bus="cores") if {k.source, k.target} == pair else k for k in found.links)
    return replace(found, devices=devices, links=links)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("devices", ["p100:4", "k80:8", "k80-cpu:2", "shared"])
@pytest.mark.parametrize("name", SMALL)
def test_differences_give_the_timeline_of_the_whole(name: str, devices: str) -> None:
    """Property: after any edit, kept or taken back, the timeline is what algorithm 1 makes of the strategy; and what
    an edit takes is known without making it."""
    topology = on_shared_cores(3) if devices == "shared" else topology_of(devices)
    net, rng = small(name), random.Random(f"{name}{devices}")
    training = rng.random() < 0.8
    simulator, again = (Simulator(net, topology, training=training) for _ in range(2))
    simulator.start(random_strategy(net, topology, rng))
    kept = 0
    for edit in range(EDITS if name == "strided" else EDITS // 12 + 1):
        changed = rng.sample(range(len(net.operators)), rng.choice((1, 1, 1, 2)))
        limit = rng.choice((math.inf, simulator.seconds, 1.02 * simulator.seconds))
        edits = [{i: random_config(net.operators[i], topology, rng) for i in changed} for _ in range(3)]
        assert simulator.look(edits, limit) == [simulator.propose(each, limit) for each in edits], edit
        found = simulator.propose(edits[0], limit)
        assert found <= limit or found == math.inf
        if found < math.inf and rng.random() < 0.6:
            simulator.accept()
            kept += 1
            assert simulator.seconds == found
        else:
            simulator.reject()
        assert again.start(simulator.strategy) == simulator.seconds
        assert again.timeline() == simulator.timeline(), edit
        assert again.memory == simulator.memory
    assert kept


@pytest.mark.parametrize("name", ["nmt", "inception_v3"])
def test_twins_in_threads_of_their_own_do_not_disturb_each_other(name: str) -> None:
    net, topology = small(name), topology_of("p100:4")
    first = Simulator(net, topology, training=True)
    start = random_strategy(net, topology, random.Random(0))

    def edited(simulator: Simulator, seed: int) -> Simulator:
        rng = random.Random(seed)
        simulator.start(start)
        for _ in range(100):
            changed = rng.randrange(len(net.operators))
            simulator.propose({changed: random_config(net.operators[changed], topology, rng)})
            simulator.accept()
        return simulator

    with ThreadPoolExecutor(4) as pool:
        twins = list(pool.map(edited, [first, *(first.twin() for _ in range(3))], range(4)))
    for twin in twins:
        alone = Simulator(net, topology, training=True)
        assert alone.start(twin.strategy) == twin.seconds
        assert alone.timeline() == twin.timeline()
        assert alone.memory == twin.memory


def two(bandwidth: float = 1e9, memory: float = math.inf, count: int = 2) -> Topology:
    """Devices of 1 flop a nanosecond, with endless memory bandwidth, so that all can be counted."""
    names = [f"d{i}" for i in range(count)]
    devices = tuple(DeviceSpec(n, "gpu", 1e9, 1e30, n) for n in names)
    links = tuple(Link(a, b, bandwidth, 1e-6) for a in names for b in names if a != b)
    return Topology("two", devices, tuple(Memory(n, memory) for n in names), links)


def chain() -> Network:
    """Two multiplications of 4 x 10 x 10: 800 flop each, over a tensor of 160 bytes."""
    b = Builder(4)
    x = b.embed(5, 10)
    b.dense(b.dense(x, 10), 10)
    return b.network("chain")


def on(*devices: int, degrees: tuple[int, int] = (1, 1)) -> PartConfig:
    return PartConfig(degrees, devices)


def seconds(net: Network, strategy: Sequence[PartConfig], training: bool = False) -> float:
    return Simulator(net, two(), Roofline(1, 1), training=training).start(strategy)


def test_a_chain_takes_the_sum_and_a_transfer_its_time() -> None:
    alone = 40e-9 + 800e-9 + 800e-9
    assert seconds(chain(), [on(0)] * 3) == pytest.approx(alone, abs=1e-15)
    assert seconds(chain(), [on(0), on(0), on(1)]) == pytest.approx(alone + 1e-6 + 160e-9, abs=1e-15)


def test_samples_are_computed_at_the_same_time_without_transfers() -> None:
    both = on(0, 1, degrees=(2, 1))
    assert seconds(chain(), [both] * 3) == pytest.approx(20e-9 + 400e-9 + 400e-9, abs=1e-15)


def test_channels_need_what_the_other_device_has() -> None:
    both = on(0, 1, degrees=(1, 2))
    half = 1e-6 + 80e-9  # each sends its half of the channels
    assert seconds(chain(), [both] * 3) == pytest.approx(20e-9 + half + 400e-9 + half + 400e-9, abs=1e-15)


def test_training_goes_back_and_exchanges_gradients() -> None:
    alone = seconds(chain(), [on(0)] * 3, training=True)
    # Forward; back, twice as long where there is an input; three updates of 2 flop a parameter.
    parameters = (50, 110, 110)
    expected = (40 + 1600) + (40 + 3200) + 2 * sum(parameters)
    # The lower layers' backward steps are ready before the upper's updates are done, and come first or wait: no gaps.
    assert alone == pytest.approx(expected * 1e-9, abs=1e-14)
    both = seconds(chain(), [on(0, 1, degrees=(2, 1))] * 3, training=True)
    assert both > expected * 0.5e-9 + 2e-6  # each layer's ring: two steps of 1 us, the last of them not hidden


def test_transfers_and_work_overlap_and_a_link_carries_one_at_a_time() -> None:
    b = Builder(4)
    x = b.embed(5, 10)
    for _ in range(3):
        b.dense(x, 10)
    net = b.network("star")
    simulator = Simulator(net, two(), Roofline(1, 1))
    simulator.start([on(0), on(0), on(1), on(1)])
    spans = {s.name: s for s in simulator.timeline().spans}
    moved = sorted((s.start, s.end) for s in spans.values() if s.kind == "transfer")
    assert moved[1][0] == moved[0][1]
    assert spans["op1[0]"].start < moved[0][1]


def test_a_timeline_is_a_trace_that_browsers_open() -> None:
    simulator = Simulator(chain(), two(), training=True)
    simulator.start([on(0), on(0, 1, degrees=(2, 1)), on(1)])
    timeline = simulator.timeline()
    trace = chrome_trace(timeline)["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in trace if e["ph"] == "M"}
    assert {"d0", "d1", "d0 to d1"} <= set(rows.values())
    spans = [e for e in trace if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(1e6 * simulator.seconds)
    assert {e["cat"] for e in spans} == {"forward", "backward", "transfer", "gradient", "update"}
    for tid in rows:  # one at a time on every lane
        lane = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == tid)
        assert all(one[1] <= other[0] + 1e-9 for one, other in itertools.pairwise(lane))
    assert timeline.busy()["d0"] <= timeline.seconds


def test_memory_is_counted_and_kept_to() -> None:
    net = chain()
    weights, outputs = net.weights, sum(o.bytes for o in net.operators)
    simulator = Simulator(net, two())
    simulator.start([on(0)] * 3)
    assert simulator.memory == (weights + outputs, 0)
    assert simulator.propose({2: on(1)}) < math.inf
    simulator.accept()
    assert simulator.memory == (weights + outputs - 440 - 160, 440 + 160 + 160)
    tight = Simulator(net, two(memory=weights))
    tight.start([on(0)] * 3)
    assert tight.excess == pytest.approx(outputs)
    assert tight.look([{2: on(1)}, {1: on(0)}]) == [tight.propose({2: on(1)}), math.inf]
    assert tight.propose({2: on(1)}) < math.inf
    tight.accept()
    assert tight.excess == 0
    assert tight.propose({2: on(0)}) == math.inf
    assert tight.look([{2: on(0)}, {}]) == [math.inf, tight.seconds]
    with pytest.raises(RuntimeError, match="nothing was proposed"):
        tight.accept()
    whole = Simulator(net, two(memory=int(weights + outputs)))  # bytes may be whole numbers
    assert whole.start([on(0)] * 3) == whole.look([{}])[0]
    assert whole.look([{2: on(1)}]) == [whole.propose({2: on(1)})]
    assert whole.propose({2: on(1)}) < math.inf


def test_what_fits_nowhere_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"chain needs 0\.0 MB, all memories of two together have 0\.0: take a smaller"):
        Simulator(chain(), two(memory=100.0))
    lacking = two()
    devices = tuple(DeviceSpec(d.name, d.kind, 1e9, 1e9, d.memory, 0.0, frozenset({"embed"})) for d in lacking.devices)
    with pytest.raises(BadInput, match="two: no device computes embed"):
        Simulator(chain(), Topology("two", devices, lacking.memories, lacking.links))


def test_parameters_that_are_not_split_alike_are_exchanged_where_they_overlap() -> None:
    """Two steps share weights: one has halves of the channels on devices 0 and 1, the other all on device 1."""
    net = network("rnnlm", steps=2, layers=1, hidden=64, batch=8)
    names = [o.name for o in net.operators]
    strategy = [on(0)] * len(names)
    strategy[names.index("lstm0.0")] = on(0, 1, degrees=(1, 2))
    strategy[names.index("lstm0.1")] = on(1)
    simulator = Simulator(net, two(), training=True)
    simulator.start(strategy)
    updates = [s for s in simulator.timeline().spans if s.name == "lstm0" and s.kind == "update"]
    lanes = sorted(s.lane for s in updates if s.lane != "exchange")
    # The first half is on both and goes round a ring of two; the second is on device 1 alone.
    assert lanes == ["d0", "d0 to d1", "d1", "d1", "d1 to d0"]


@pytest.mark.parametrize("training", [False, True])
def test_devices_on_the_same_cores_never_work_at_the_same_time(training: bool) -> None:
    net, topology, rng = small("lenet"), on_shared_cores(3), random.Random(3)
    assert topology.lanes[:2] == ("cores", "gpu2")
    simulator = Simulator(net, topology, training=training)
    alone = Simulator(net, topology_of("p100:3"), training=training)
    slower = 0
    for _ in range(20):
        strategy = random_strategy(net, topology, rng)
        seconds = simulator.start(strategy)
        spans = sorted((s.start, s.end) for s in simulator.timeline().spans if s.lane == "cores")
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        assert seconds == simulator.timeline().seconds
        slower += seconds > alone.start(strategy)
    assert slower > 10
    busy = simulator.timeline().busy()
    assert not {"gpu0", "gpu1", "bus cores", "gpu0 to gpu1"} & set(busy)


def test_two_branches_on_the_same_cores_take_their_sum() -> None:
    b = Builder(1)
    b.operators = [
        NetworkOperator("one", "relu", (1, 1000), "--", flop=1e6),
        NetworkOperator("two", "relu", (1, 1000), "--", flop=1e6),
    ]
    net, strategy = b.network("two"), (PartConfig((1, 1), (0,)), PartConfig((1, 1), (1,)))
    cost = Roofline(1, 1)
    apart = Simulator(net, topology_of("p100:2"), cost).start(strategy)
    together = Simulator(net, on_shared_cores(2), cost).start(strategy)
    assert together == pytest.approx(2 * apart, rel=1e-9)
