"""Ways of placing a model's steps on a GPU and the CPU by simulation, no kernel being measured. Start at `place`.

All of them see the same costs (`estimated.estimated_network`: the database's best times, fitted rooflines behind them).
What they find is taken only where the simulator says that it is faster than what needs no search: each device alone,
and the fallback. `mcmc` goes on with steps in parts (`parts`), and takes these where they are faster as they are built,
slices, copies and concatenations included, than all that leaves every step whole.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from board_agent.topology import usable_cpus
from tuner.devices import Device
from tuner.graph import FusedGraph
from tuner.graph.split import Split
from tuner.placement import mcmc
from tuner.placement.baselines.additive import additive
from tuner.placement.baselines.whole import whole
from tuner.placement.estimated import Estimates
from tuner.placement.fallback import CPU, GPU, fall_back, operator_of, within_memory_of
from tuner.placement.known import samples_of
from tuner.placement.measured import Simulated
from tuner.placement.memory import memory_on
from tuner.placement.parts import all_in_rows, built, configs_in_parts, fewer_parts
from tuner.placement.simulator import Simulator
from tuner.placement.simulator.fitting import check_enough
from tuner.placement.soap import Strategy
from tuner.placement.topology import Topology
from tuning_db.store import Store

FALLBACK = "fallback"


@dataclass(frozen=True)
class Placing:
    """`strategy`: what is to be built, as `split` has it. It is what the `way` found (`taken` is the way's name then),
    or one of `simple`, which has the simulated seconds of each device alone, infinite where it cannot, and of the
    fallback. `found`: the seconds of what the way found. `in_parts`: those of what it found with steps in parts, as it
    would be built; None where it found none that fit."""

    way: str
    taken: str
    strategy: Strategy
    split: Split
    found: float
    simple: Mapping[str, float]
    in_parts: float | None = None
    measured: bool = False  # by running what was found and the simple ones

    @property
    def placement(self) -> tuple[int, ...]:
        """The index of the device of each step of `split.graph`."""
        return self.split.placement

    @property
    def seconds(self) -> float:
        if self.split.whole and self.in_parts is not None:
            return self.in_parts
        return self.simple.get(self.taken, self.found)

    def text(self) -> str:
        """For a person, in one line."""
        beside = ", ".join(f"{name} {_milliseconds(s)}" for name, s in self.simple.items())
        known = "measured" if self.measured else "simulated"
        found = f"{self.way} placement: {known} {_milliseconds(self.found)}, {beside}"
        if self.in_parts is not None:
            whole = {step.out for step in self.split.whole.values()}
            taken = f"{len(whole)} steps are split" if self.split.whole else "no step is split"
            found += f", with steps in parts {_milliseconds(self.in_parts)}: {taken}"
        return found if self.taken == self.way else f"{found}; no gain: {self.taken} is taken"


def place(
    way: str,
    graph: FusedGraph,
    devices: Sequence[Device],
    topology: Topology,
    store: Store,
    unwanted: Collection[str] = (),
    seconds: float = 10.0,
    seed: int = 0,
    reward: Callable[[Sequence[int]], float] | None = None,
) -> Placing:
    """A placement on `devices`, a GPU and the CPU, which `topology` has in this order. `way`: of `WAYS`. `unwanted`:
    as `fallback.fall_back` has it. `seconds`: how long the ways that search may. `reward`: what says the seconds of
    placements instead of the simulator (`runs.Runs`); of the ways that search `learned` alone asks it.

    The GPU's `memory_bytes` are kept to as the fallback does: the last steps go to the CPU.

    Raises BadInput as `fall_back` and `estimated_network` do, and where `learned` lacks torch or learns nothing that
    the devices can compute.
    """
    fallback = fall_back(graph, devices[GPU].target, unwanted, devices[GPU].memory_bytes)
    estimates = Estimates(devices, _unlimited(topology), store, graph.dtype)
    given = _without(unwanted, graph, estimates.network(graph))
    simulator = Simulator(given.network, given.topology, given.cost)
    simple = {FALLBACK: fallback}
    for d, device in enumerate(devices):
        alone = [d] * len(graph.steps)
        if _runs(given, alone) and within_memory_of(graph, alone, devices[GPU].memory_bytes) == alone:
            simple[f"{device.name} alone"] = alone
    starts = {name: _strategy(given, placement) for name, placement in simple.items()}

    def seconds_of(placement: Sequence[int]) -> float:
        return simulator.start(_strategy(given, placement)) if reward is None else reward(placement)

    took = {name: seconds_of(placement) for name, placement in simple.items()}
    share = seconds / 2 if way in IN_PARTS else seconds
    task = _Task(given, starts, random.Random(seed), share, reward)
    chosen = WAYS[way](task)
    placement = within_memory_of(graph, [config.devices[0] for config in chosen], devices[GPU].memory_bytes)
    found = seconds_of(placement)
    best = min(took, key=lambda name: took[name])
    took = {name: took.get(name, math.inf) for name in (*(f"{d.name} alone" for d in devices), FALLBACK)}
    taken, strategy = (way, _strategy(given, placement)) if found < took[best] else (best, starts[best])
    placing = Placing(way, taken, strategy, built(graph, strategy, CPU), found, took, measured=reward is not None)
    return _in_parts(placing, task, devices, unwanted, estimates) if way in IN_PARTS else placing


def _in_parts(
    placing: Placing, task: _Task, devices: Sequence[Device], unwanted: Collection[str], estimates: Estimates
) -> Placing:
    """With steps in parts where that is faster as it is built, and fits into the GPU's memory."""
    starts = {**task.starts, placing.taken: placing.strategy, "rows": all_in_rows(task.simulator(), placing.strategy)}
    options = mcmc.Options(seconds=task.seconds / (2 * len(starts)), threads=len(usable_cpus()))
    strategy = mcmc.search(task.simulator, starts, task.rng, options, configs=configs_in_parts).strategy
    found = _Built(placing.split.graph, devices, unwanted, estimates)
    until = time.monotonic() + task.seconds
    strategy, took = fewer_parts(strategy, found.seconds, lambda: time.monotonic() < until)
    split = built(found.graph, strategy, CPU)
    if not split.whole or math.isinf(took):
        return placing
    if took >= placing.seconds:
        return replace(placing, in_parts=took)
    return replace(placing, taken=placing.way, strategy=strategy, split=split, in_parts=took)


@dataclass(frozen=True)
class _Built:
    """What strategies of a graph take as they are built."""

    graph: FusedGraph
    devices: Sequence[Device]
    unwanted: Collection[str]
    estimates: Estimates

    def seconds(self, strategy: Strategy) -> float:
        """Infinite for what does not fit into the GPU's memory, or one of the devices cannot compute."""
        split, limit = built(self.graph, strategy, CPU), self.devices[GPU].memory_bytes
        if limit is not None and memory_on(split.graph, split.placement, GPU) > limit:
            return math.inf
        given = _without(self.unwanted, split.graph, self.estimates.network(split.graph, split.whole))
        if not _runs(given, split.placement):
            return math.inf
        return Simulator(given.network, given.topology, given.cost).start(_strategy(given, split.placement))


def check_known(store: Store, devices: Sequence[Device], dtype: str) -> None:
    """Raises BadInput where the database has too little of a device for `place`, DatabaseError if it cannot be read."""
    for device in devices:
        check_enough(samples_of(store, device.key, dtype), device.name)


@dataclass(frozen=True)
class _Task:
    """What a way is given; `starts`: strategies by name."""

    given: Simulated
    starts: Mapping[str, Strategy]
    rng: random.Random
    seconds: float
    reward: Callable[[Sequence[int]], float] | None = None

    def simulator(self) -> Simulator:
        return Simulator(self.given.network, self.given.topology, self.given.cost)


def _exact(task: _Task) -> Strategy:
    return additive(task.given.network, task.given.topology, task.given.cost, training=False)


def _mcmc(task: _Task) -> Strategy:
    """Chains from all starts and from the exact sum, which have half of the time; the other half is for the polish."""
    starts = {**task.starts, "exact": _exact(task)}
    options = mcmc.Options(seconds=task.seconds / (2 * len(starts)), threads=len(usable_cpus()))
    return mcmc.search(task.simulator, starts, task.rng, options).strategy


def _learned(task: _Task) -> Strategy:
    from tuner.placement.learned import Settings, learn

    given, settings = task.given, Settings(seconds=task.seconds)
    return learn(given.network, given.topology, task.simulator(), settings, task.rng, reward=task.reward).strategy


WAYS: Mapping[str, Callable[[_Task], Strategy]] = {"exact": _exact, "mcmc": _mcmc, "learned": _learned}
IN_PARTS = ("mcmc",)  # ways that go on with steps in parts, for as long again


def _unlimited(topology: Topology) -> Topology:
    """The simulator frees no value, `memory_on` does: memory is kept to by that."""
    return replace(topology, memories=tuple(replace(m, bytes=math.inf) for m in topology.memories))


def _without(unwanted: Collection[str], graph: FusedGraph, given: Simulated) -> Simulated:
    """The GPU does not compute the steps of these operators."""
    each = zip(graph.steps, given.network.operators, strict=True)
    lacks = {operator.kind for step, operator in each if operator_of(step) in unwanted}
    devices = list(given.topology.devices)
    devices[GPU] = replace(devices[GPU], lacks=devices[GPU].lacks | lacks)
    return given._replace(topology=replace(given.topology, devices=tuple(devices)))


def _runs(given: Simulated, placement: Sequence[int]) -> bool:
    return all(d in given.topology.able(o.kind) for o, d in zip(given.network.operators, placement, strict=True))


def _strategy(given: Simulated, placement: Sequence[int]) -> Strategy:
    return tuple(whole(o, d) for o, d in zip(given.network.operators, placement, strict=True))


def _milliseconds(seconds: float) -> str:
    return "cannot" if math.isinf(seconds) else f"{1e3 * seconds:.3f} ms"
