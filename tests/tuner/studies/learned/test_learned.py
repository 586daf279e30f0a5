"""Learned placement: groups, the policy, and that it learns. Needs the extra `rl`."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tuner.errors import BadInput
from tuner.studies.baselines import strategy_of
from tuner.studies.networks import Network, network
from tuner.studies.networks.operators import Builder
from tuner.studies.simulator import Simulator
from tuner.studies.topology import Topology, topology_of

torch = pytest.importorskip("torch")

from tuner.studies.learned import Settings, groups_of, learn  # noqa: E402
from tuner.studies.learned.policy import Policy  # noqa: E402
from tuner.studies.learned.reinforce import Learned  # noqa: E402

K80 = topology_of("k80-cpu:2")


def branches() -> Network:
    """Two towers that nothing but their join has in common."""
    b = Builder(64)
    x = b.image(3, 64)
    ends = []
    for tower in "ab":
        y = x
        for i in range(3):
            b.branch = f"{tower}{i}"
            y = b.conv(y, 64, 3, 1, 1, name=b.branch)
        ends.append(y)
    b.branch = "join"
    b.dense(b.global_pool(b.concat(ends)), 10)
    return b.network("branches")


def learned(net: Network, topology: Topology, seed: int = 0, **settings: float) -> Learned:
    simulator = Simulator(net, topology, training=True)
    return learn(simulator, settings=Settings(**settings), rng=random.Random(seed))  # type: ignore[arg-type]


def test_steps_and_branches_are_groups() -> None:
    nmt, inception = network("nmt", steps=3), network("inception_v3")
    found = groups_of(nmt)
    assert sorted(i for of in found.members for i in of) == list(range(len(nmt.operators)))
    # The stacked states have three readers; everything else has weights of its own.
    assert len(found.members) == len(nmt.operators)
    assert found.types == len({o.layer or o.kind for o in nmt.operators})
    branches_found = groups_of(inception)
    assert 60 <= len(branches_found.members) <= 85  # the paper's has 83
    together = {inception.operators[i].name for of in branches_found.members for i in of if len(of) > 2}
    assert {"c0.7x7.0", "c0.7x7.1", "c0.7x7.2"} <= together


def test_light_work_joins_its_only_reader() -> None:
    found = groups_of(replace(branches(), branches=tuple(o.name for o in branches().operators)))
    assert len(found.members) == 7  # concat and pool joined the dense layer
    assert len(found.members[-1]) == 3


def test_groups_see_their_neighbours() -> None:
    found = groups_of(branches())
    count = len(found.members)
    reads, read_by = found.features[:, 4 : 4 + count], found.features[:, 4 + count :]
    assert np.array_equal(reads, read_by.T)
    assert reads.sum() == 6
    assert (found.features[:, :2] > 0).all()


def test_a_placement_has_the_probability_that_is_told() -> None:
    torch.manual_seed(0)
    policy = Policy(groups_of(branches()), devices=2)
    with torch.no_grad():
        policy._choice.weight.mul_(10)  # untrained, all are about as likely
        placements, logs = policy.sample(3000, torch.Generator().manual_seed(1))
    seen: dict[tuple[int, ...], tuple[int, float]] = {}
    for placement, log in zip(map(tuple, placements.tolist()), logs.tolist(), strict=True):
        seen[placement] = seen.get(placement, (0, 0.0))[0] + 1, math.exp(log)
    assert len(seen) > 20
    often = [(n / 3000, p) for n, p in seen.values() if p > 0.012]
    assert len(often) > 5
    assert all(share == pytest.approx(p, rel=0.5) for share, p in often)
    assert sum(p for _, p in seen.values()) <= 1.0001
    greedy, log = policy.sample(1, None)
    assert log.item() > logs.mean().item()
    assert greedy.shape == (1, 7)


def test_it_learns_to_use_both_devices() -> None:
    net = branches()
    found = learned(net, topology_of("p100:2"), updates=60, samples=8, rate=0.01)
    one = Simulator(net, topology_of("p100:2"), training=True).start(strategy_of("single", net, topology_of("p100:2")))
    assert found.seconds < 0.9 * one
    assert sum(found.history[-10:]) < 0.95 * sum(found.history[:10])
    assert found.samples == 480


def test_the_same_seed_learns_the_same() -> None:
    one, other = (learned(branches(), K80, 3, updates=5, samples=4) for _ in range(2))
    assert (one.strategy, one.history) == (other.strategy, other.history)
    assert learned(branches(), K80, 4, updates=5, samples=4).history != one.history


def test_placements_that_do_not_fit_fail_and_are_avoided() -> None:
    """Each GPU has room for one of the towers and its join, the CPU for nothing."""
    net = branches()
    whole = Simulator(net, K80, training=True)
    whole.start(strategy_of("gpu", net, K80))
    room = max(whole.memory)
    small = tuple(replace(m, bytes=1e6 if m.name == "cpu" else 0.8 * room) for m in K80.memories)
    found = learned(net, Topology("small", K80.devices, small, K80.links), updates=60, samples=8, rate=0.01)
    check = Simulator(net, Topology("small", K80.devices, small, K80.links), training=True)
    assert check.start(found.strategy) == found.seconds
    assert check.excess == 0
    assert 0 < found.failed < found.samples


def test_where_nothing_fits_that_is_said() -> None:
    net = branches()
    whole = Simulator(net, K80, training=True)
    whole.start(strategy_of("gpu", net, K80))
    small = tuple(replace(m, bytes=0.45 * max(whole.memory)) for m in K80.memories)
    with pytest.raises(BadInput, match="branches: no placement that was learned fits"):
        learned(net, Topology("small", K80.devices, small, K80.links), updates=1, samples=1)


def test_without_torch_the_rest_works_and_this_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["torch"] = None
import tuner.studies.mcmc, tuner.studies.baselines
from tuner.errors import BadInput
try:
    import tuner.studies.learned
except BadInput as error:
    sys.exit("pip install 'edgetune[rl]'" not in str(error))
sys.exit(2)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_learns_from_whoever_tells_the_seconds() -> None:
    """Somebody whose seconds are least where everything is on the last device, which the simulator does not think."""
    net = branches()
    asked: list[tuple[int, ...]] = []

    def reward(placement: Sequence[int]) -> float:
        asked.append(tuple(placement))
        return math.inf if set(placement) == {0} else 1.0 + sum(device != 2 for device in placement)

    simulator = Simulator(net, K80, training=True)
    settings = Settings(updates=60, rate=0.01)
    found = learn(simulator, settings=settings, rng=random.Random(0), reward=reward)
    assert found.seconds == min(reward(placement) for placement in set(asked))
    assert found.seconds == reward([config.devices[0] for config in found.strategy])
    assert found.history[-1] < found.history[0]
    assert all(len(placement) == len(net.operators) for placement in asked)


def test_failing_is_worse_than_whatever_runs() -> None:
    """Once the devices were asked for alone, whatever runs takes 2.5 times as long, and what has its end on the first
    device fails: that is learned to be left, where failing told as the slowest device alone would be sought."""
    net, asked = branches(), list[tuple[int, ...]]()

    def reward(placement: Sequence[int]) -> float:
        asked.append(tuple(placement))
        if len(asked) <= len(K80.devices):
            return 1.0
        return math.inf if placement[-1] == 0 else 2.5

    simulator = Simulator(net, K80, training=True)
    found = learn(simulator, settings=Settings(updates=60, rate=0.01), rng=random.Random(0), reward=reward)
    assert found.failed < found.samples / 10


@pytest.mark.parametrize("fits", [True, False])
def test_nothing_is_tried_after_the_time_once_something_fits(fits: bool) -> None:
    """Each placement takes a second."""
    net, asked = branches(), list[tuple[int, ...]]()

    def reward(placement: Sequence[int]) -> float:
        asked.append(tuple(placement))
        return 1.0 if fits or len(set(placement)) == 1 else math.inf

    def learned_in(seconds: float) -> Learned:
        asked.clear()
        settings = Settings(seconds=seconds)
        simulator = Simulator(net, K80, training=True)
        return learn(simulator, settings=settings, rng=random.Random(0), clock=lambda: float(len(asked)), reward=reward)

    alone = len(K80.devices)  # are asked first
    if fits:
        assert learned_in(alone + 20).samples == 20
        assert learned_in(1).samples == 1
    else:
        with pytest.raises(BadInput, match="no placement that was learned"):
            learned_in(1)
        assert len(asked) == alone + Settings().samples


def test_what_a_device_lacks_fails_and_is_avoided() -> None:
    devices = tuple(replace(d, lacks=frozenset({"matmul"})) if d.kind == "gpu" else d for d in K80.devices)
    found = learned(branches(), replace(K80, devices=devices), updates=30, samples=8, rate=0.01)
    assert found.strategy[-1].devices == (0,)
    assert 0 < found.failed < found.samples
