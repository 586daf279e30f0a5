"""Learns a placement by REINFORCE (Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning",
section 3.1). Start at `learn`.

The paper gives neither the learning rate nor sizes, and it runs every placement. Here the simulator predicts the
seconds of a placement, unless another `reward` is given; `tuner.studies.runs.Runs` is one that runs placements.
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
from tuner.studies.simulator import Simulator
from tuner.studies.soap import Strategy


@dataclass(frozen=True)
class Settings:
    """Settings of the learning, which samples `samples` placements for each of `updates` steps of Adam with `rate`.

    - `failing` times the root of the slowest device's seconds is the signal of a placement that does not fit into the
      memories. It stands for the paper's large constant: at 2, a failure counts as four times the slowest device's
      seconds. The moving-average baseline starts there, too.
    - `memory` is the share of itself that this baseline keeps at each update.
    - `settled` is the share of the updates after which only placements that fit change the policy.
    - `seconds` is the time after which no other placement is tried. The first update goes on until a placement fits.
    """

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
    """Holds the result of learning: `strategy` is the fastest placement sampled, and `elapsed` the seconds until it was
    found. `history` holds, for each update, the mean seconds of the sampled placements that fit."""

    strategy: Strategy = ()
    seconds: float = math.inf
    samples: int = 0
    failed: int = 0
    elapsed: float = 0.0
    history: list[float] = field(default_factory=list)


def learn(
    simulator: Simulator,
    settings: Settings,
    rng: random.Random,
    *,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[Learned], None] = lambda _: None,
    reward: Callable[[Sequence[int]], float] | None = None,
) -> Learned:
    """Learn a device for each group of the network's operators, and return the fastest placement that was sampled.

    The same `rng` gives the same result. `progress` is called after every update; an exception that it raises ends the
    learning. `reward` returns seconds for the device of every operator, infinity where that is impossible. It is asked
    only about placements that fit into the memories, which the simulator decides. By default the seconds are the
    simulator's.

    Raises BadInput where no placement that was sampled fits into the memories.
    """
    network, topology = simulator.network, simulator.topology
    groups = groups_of(network)
    torch.set_num_threads(1)  # the steps are too small to share
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.getrandbits(63))
        policy = Policy(groups, len(topology.devices))
    found, began = Learned(), clock()
    optimizer = torch.optim.Adam(policy.parameters(), settings.rate)
    failing = settings.failing * math.sqrt(_slowest(simulator, reward))
    baseline = failing
    for update in range(settings.updates):
        if update and clock() - began >= settings.seconds:
            break
        placements, logs = policy.sample(settings.samples, generator)
        signals, fits = [], []
        for placement in placements.tolist():
            if found.strategy and clock() - began >= settings.seconds:
                return found
            seconds = _seconds(simulator, groups, placement, reward)
            fits.append(seconds < math.inf)
            found.samples, found.failed = found.samples + 1, found.failed + (not fits[-1])
            signals.append(math.sqrt(seconds) if fits[-1] else failing)
            if seconds < found.seconds:
                found.strategy, found.seconds, found.elapsed = simulator.strategy, seconds, clock() - began
        # The signals are divided by the baseline, since their scale differs between networks.
        advantage = torch.tensor([(s - baseline) / baseline for s in signals])
        if update >= settings.settled * settings.updates:
            advantage = advantage * torch.tensor(fits)
        _step(policy, optimizer, (advantage * logs).mean(), settings.clip)
        baseline = settings.memory * baseline + (1 - settings.memory) * sum(signals) / len(signals)
        ran = [s * s for s, fit in zip(signals, fits, strict=True) if fit]
        found.history.append(sum(ran) / len(ran) if ran else math.inf)
        progress(found)
    if not found.strategy:
        raise BadInput(f"{network.name}: no placement that was learned fits into the memories of {topology.name}")
    return found


def _step(policy: Policy, optimizer: torch.optim.Optimizer, loss: torch.Tensor, clip: float) -> None:
    """Update the policy by the paper's equation 3, with the norm of the gradients clipped."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), clip)
    optimizer.step()


def _seconds(
    simulator: Simulator, groups: Groups, placement: list[int], reward: Callable[[Sequence[int]], float] | None
) -> float:
    """Return a placement's seconds; infinity where it does not fit into the memories or a device lacks an operator."""
    operators, topology = simulator.network.operators, simulator.topology
    device = {i: d for of, d in zip(groups.members, placement, strict=True) for i in of}
    if any(device[i] not in topology.able(o.kind) for i, o in enumerate(operators)):
        return math.inf
    seconds = simulator.start([whole(o, device[i]) for i, o in enumerate(operators)])
    if simulator.excess > 0:
        return math.inf
    return seconds if reward is None else reward([device[i] for i in range(len(operators))])


def _slowest(simulator: Simulator, reward: Callable[[Sequence[int]], float] | None) -> float:
    """Return the seconds of the whole network on the slowest device.

    With a `reward` only devices that can compute the network count. Without one, or if there is no such device, the
    simulator is asked; what a device lacks then runs on the fastest device that has it.
    """
    network, topology = simulator.network, simulator.topology
    devices = range(len(topology.devices))
    if reward is not None:
        found = [seconds for d in devices if (seconds := reward([d] * len(network.operators))) < math.inf]
        if found:
            return max(found)
    return max(simulator.start(fall_back(network, topology, d)) for d in devices)
