"""Learning a placement by REINFORCE (paper 004, section 3.1). Start at `learn`.

The paper gives neither learning rate nor sizes, and it runs every placement; here the simulator says what one takes, or
whoever is asked instead, as `placement.runs.Runs`, which runs them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tuner.errors import BadInput
from tuner.studies.baselines.whole import fall_back, whole
from tuner.studies.learned.groups import Groups, groups_of
from tuner.studies.learned.policy import Policy
from tuner.studies.networks import Network
from tuner.studies.simulator import Simulator
from tuner.studies.soap import Strategy
from tuner.studies.topology import Topology


@dataclass(frozen=True)
class Settings:
    """`samples` placements for each of `updates` steps of Adam with `rate`. `failing`: times the root of what the
    slowest device alone takes, the signal of a placement that does not fit into the memories (the paper's large
    constant: four times that device's seconds are worth more than a failure), and what the moving-average baseline
    starts at, which keeps `memory` of itself. After `settled` (a share of the updates) only placements that fit change
    the policy. `seconds`: after which no other placement is tried, but those of the first update until one fits."""

    updates: int = 200
    samples: int = 16
    rate: float = 0.003
    memory: float = 0.9
    failing: float = 2.0
    settled: float = 0.5
    clip: float = 1.0
    seconds: float = math.inf


@dataclass
class Learned:
    """`strategy`: the fastest placement that was sampled; `elapsed`: after which it was found; `history`: the mean of
    sampled seconds after each update, of those that fit."""

    strategy: Strategy = ()
    seconds: float = math.inf
    samples: int = 0
    failed: int = 0
    elapsed: float = 0.0
    history: list[float] = field(default_factory=list)


def learn(
    network: Network,
    topology: Topology,
    simulator: Simulator,
    *,
    settings: Settings,
    rng: random.Random,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[Learned], None] = lambda _: None,
    reward: Callable[[Sequence[int]], float] | None = None,
) -> Learned:
    """A device for each group of operators. Same `rng`: same result. `progress` is told after every update; what it
    raises ends the learning. `reward`: seconds by the device of every operator, infinite where it cannot be, of what
    fits into the memories (default: the simulator's, which always says whether it does). Raises BadInput where no
    placement that was sampled fits into the memories."""
    groups = groups_of(network)
    torch.set_num_threads(1)  # the steps are too small to share
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.getrandbits(63))
        policy = Policy(groups, len(topology.devices))
    found, began = Learned(), clock()
    optimizer = torch.optim.Adam(policy.parameters(), settings.rate)
    failing = settings.failing * math.sqrt(_slowest(network, topology, simulator, reward))
    baseline = failing
    for update in range(settings.updates):
        if update and clock() - began >= settings.seconds:
            break
        placements, logs = policy.sample(settings.samples, generator)
        signals, fits = [], []
        for placement in placements.tolist():
            if found.strategy and clock() - began >= settings.seconds:
                return found
            seconds = _seconds(network, topology, simulator, groups=groups, placement=placement, reward=reward)
            fits.append(seconds < math.inf)
            found.samples, found.failed = found.samples + 1, found.failed + (not fits[-1])
            signals.append(math.sqrt(seconds) if fits[-1] else failing)
            if seconds < found.seconds:
                found.strategy, found.seconds, found.elapsed = simulator.strategy, seconds, clock() - began
        _step(
            policy,
            optimizer,
            logs,
            signals=signals,
            fits=fits,
            baseline=baseline,
            settled=update >= settings.settled * settings.updates,
            settings=settings,
        )
        baseline = settings.memory * baseline + (1 - settings.memory) * sum(signals) / len(signals)
        ran = [s * s for s, fit in zip(signals, fits, strict=True) if fit]
        found.history.append(sum(ran) / len(ran) if ran else math.inf)
        progress(found)
    if not found.strategy:
        raise BadInput(f"{network.name}: no placement that was learned fits into the memories of {topology.name}")
    return found


def _step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    logs: torch.Tensor,
    *,
    signals: list[float],
    fits: list[bool],
    baseline: float,
    settled: bool,
    settings: Settings,
) -> None:
    """Equation 3; the signals' scale, which differs between networks, is taken out by the baseline's."""
    advantage = torch.tensor([(s - baseline) / baseline for s in signals])
    if settled:
        advantage = advantage * torch.tensor(fits)
    loss = (advantage * logs).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.clip)
    optimizer.step()


def _seconds(
    network: Network,
    topology: Topology,
    simulator: Simulator,
    *,
    groups: Groups,
    placement: list[int],
    reward: Callable[[Sequence[int]], float] | None,
) -> float:
    """Infinite where it does not fit, or where a device lacks an operator."""
    device = {i: d for of, d in zip(groups.members, placement, strict=True) for i in of}
    if any(device[i] not in topology.able(o.kind) for i, o in enumerate(network.operators)):
        return math.inf
    seconds = simulator.start([whole(o, device[i]) for i, o in enumerate(network.operators)])
    if simulator.excess > 0:
        return math.inf
    return seconds if reward is None else reward([device[i] for i in range(len(network.operators))])


def _slowest(
    network: Network, topology: Topology, simulator: Simulator, reward: Callable[[Sequence[int]], float] | None
) -> float:
    """Seconds of the whole network on the slowest device that can compute it; by the simulator if none can, what a
    device lacks being on the fastest that does not."""
    devices = range(len(topology.devices))
    if reward is not None:
        found = [seconds for d in devices if (seconds := reward([d] * len(network.operators))) < math.inf]
        if found:
            return max(found)
    return max(simulator.start(fall_back(network, topology, d)) for d in devices)
