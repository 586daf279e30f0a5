"""Places a model's steps on a GPU and the CPU by simulation, without measuring any kernel. Start at `place`.

All search methods see the same costs: the database's best times, and fitted rooflines where there are none
(`estimated_network.estimated_network`). A result is taken only if the simulator says that it is faster than each device
alone and than the fallback, which need no search.

`mcmc` then searches on with steps in parts (`parts`). It takes these only if they beat every placement of whole steps,
as they are built: with their slices, copies and concatenations. The chains give each device the whole rate of its
memory. The final comparison shares the rate between devices that draw on one memory at the same time
(`simulator.contention`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from board_agent.topology import usable_cpus
from tuner.activity import activity
from tuner.devices import Device
from tuner.graph import FusedGraph
from tuner.graph.fusion.split import Split
from tuner.placement.fallback import CPU, GPU, fall_back, operator_of
from tuner.studies import mcmc
from tuner.studies.baselines.additive import additive
from tuner.studies.baselines.whole import whole
from tuner.studies.database_costs import samples_of
from tuner.studies.estimated_network import Estimates
from tuner.studies.measured_network import Simulated
from tuner.studies.memory_check import Limits
from tuner.studies.parts import all_in_rows, built, configs_in_parts, fewer_parts
from tuner.studies.simulator import Simulator, Timeline
from tuner.studies.simulator.contention import contended, contended_timeline
from tuner.studies.simulator.fitting import check_enough
from tuner.studies.soap import Proposals, Strategy, random_strategy
from tuner.studies.topology import Topology
from tuning_db.store import Store

FALLBACK = "fallback"
_REACHED = 1.0  # share of a memory's rate: measured topologies (`tune devices --topology`) hold what kernels reach


@dataclass(frozen=True)
class PlacementResult:
    """The strategy to build, and the seconds that led to it.

    `strategy` is what is to be built, and `split` the graph in its parts. The strategy is either what the search method
    `way` found, with `taken` equal to `way`, or the simple placement that `taken` names. `simple` holds the simulated
    seconds of the fallback and of each device alone, infinite where that is impossible. `found` is the seconds of what
    the search found with whole steps. `in_parts` is the seconds of what it found with steps in parts, as it would be
    built; it is None where no step is split or nothing fits.
    """

    way: str
    taken: str
    strategy: Strategy
    split: Split
    found: float
    simple: Mapping[str, float]
    scene: _Scene = field(repr=False)  # of `split.graph`
    in_parts: float | None = None
    measured: bool = False  # whether `found` and `simple` were measured by running the placements

    def timeline(self) -> Timeline:
        """Return the simulated timeline of what is to be built."""
        return self.scene.timeline(self.placement)

    @property
    def placement(self) -> tuple[int, ...]:
        """Return the index of the device of each step of `split.graph`."""
        return self.split.placement

    @property
    def seconds(self) -> float:
        if self.split.whole and self.in_parts is not None:
            return self.in_parts
        return self.simple.get(self.taken, self.found)

    def text(self) -> str:
        """Describe the result for a person, in one line."""
        beside = ", ".join(f"{name} {_milliseconds(s)}" for name, s in self.simple.items())
        known = "measured" if self.measured else "simulated"
        found = f"{self.way} placement: {known} {_milliseconds(self.found)}, {beside}"
        if self.in_parts is not None:
            whole = {step.out for step in self.split.whole.values()}
            taken = f"{len(whole)} steps are split" if self.split.whole else "no step is split"
            found += f", with steps in parts {_milliseconds(self.in_parts)}: {taken}"
        return found if self.taken == self.way else f"{found}; no gain: {self.taken} is taken"


@dataclass(frozen=True)
class PlaceOptions:
    """Options of `place`; all have defaults.

    - `unwanted` names operators that the GPU must not compute, as in `fallback.fall_back`.
    - `seconds` is how long methods that search may take, and `seed` is the seed of their random numbers.
    - `reward` returns the seconds of placements in place of the simulator (`runs.Runs`). Of the methods that search,
      only `learned` asks it.
    """

    unwanted: Collection[str] = ()
    seconds: float = 10.0
    seed: int = 0
    reward: Callable[[Sequence[int]], float] | None = None


@activity("searching for a placement")
def place(
    way: str,
    graph: FusedGraph,
    devices: Sequence[Device],
    *,
    topology: Topology,
    store: Store,
    options: PlaceOptions | None = None,
) -> PlacementResult:
    """Place a graph on `devices`, a GPU and the CPU, which `topology` lists in this order. `way` is the search method,
    one of `WAYS`.

    No result exceeds the topology's memories, some of which devices may share. If the GPU's steps need more than its
    own memory, or than its `memory_bytes` where these are less, its last steps go to the CPU, as in the fallback. Steps
    of a kind that the topology's GPU `lacks` go to the CPU.

    Raises BadInput as `fall_back` and `estimated_network` do, where nothing fits into the memories, and where `learned`
    lacks torch or learns nothing that the devices can compute.
    """
    options = options or PlaceOptions()
    unwanted, reward = options.unwanted, options.reward
    fallback = fall_back(graph, devices[GPU].target, unwanted)
    estimates = Estimates(devices, _unlimited(topology), store, graph.dtype)
    given = _without(unwanted, graph, estimates.network(graph))
    scene = _Scene(graph, given, Limits.of(topology, devices[GPU]), reward)
    fallback = [CPU if GPU in lacking else d for d, lacking in zip(fallback, _lacking(given), strict=True)]
    scene.limits.check(graph, fallback)
    simple = {FALLBACK: scene.limits.kept(graph, fallback)}
    simple |= {f"{device.name} alone": [d] * len(graph.steps) for d, device in enumerate(devices)}
    simple = {name: placement for name, placement in simple.items() if scene.can(placement)}
    took = {name: scene.seconds(placement) for name, placement in simple.items()}
    starts = {name: _strategy(given, placement) for name, placement in (simple or {FALLBACK: fallback}).items()}
    share = options.seconds / 2 if way in IN_PARTS else options.seconds
    task = _Task(given, starts, random.Random(options.seed), share, reward)
    placement = scene.limits.kept(graph, [config.devices[0] for config in WAYS[way](task)])
    if not simple and not scene.can(placement):
        raise scene.limits.refusal(graph, fallback)
    found = scene.seconds(placement)
    best = min(took, key=lambda name: took[name], default=way)
    taken, strategy = (best, starts[best]) if found >= took.get(best, math.inf) else (way, _strategy(given, placement))
    took = {name: took.get(name, math.inf) for name in (*(f"{d.name} alone" for d in devices), FALLBACK)}
    split = built(graph, strategy, CPU)
    placing = PlacementResult(way, taken, strategy, split, found, took, scene, measured=reward is not None)
    return _in_parts(placing, task, scene, unwanted=unwanted, estimates=estimates) if way in IN_PARTS else placing


def _in_parts(
    placing: PlacementResult, task: _Task, scene: _Scene, *, unwanted: Collection[str], estimates: Estimates
) -> PlacementResult:
    """Return the result with steps in parts where that is faster as it is built, and fits into the memories."""
    starts = {**task.starts, placing.taken: placing.strategy, "rows": all_in_rows(task.simulator(), placing.strategy)}
    strategy = task.searched(starts, configs_in_parts)
    found = _Built(placing.split.graph, scene.limits, unwanted, estimates)
    until = time.monotonic() + task.seconds
    strategy, took = fewer_parts(strategy, found.seconds, lambda: time.monotonic() < until)
    split = built(found.graph, strategy, CPU)
    if not split.whole or math.isinf(took):
        return placing
    if took >= placing.seconds:
        return replace(placing, in_parts=took)
    scene = found.scene(split)
    return replace(placing, taken=placing.way, strategy=strategy, split=split, scene=scene, in_parts=took)


@dataclass(frozen=True)
class _Scene:
    """Evaluates placements of a graph. `reward` is that of `place`."""

    graph: FusedGraph
    given: Simulated
    limits: Limits
    reward: Callable[[Sequence[int]], float] | None = None

    def can(self, placement: Sequence[int]) -> bool:
        """Tell whether the devices compute every step and the placement fits into their memories."""
        runs = all(d not in lacking for d, lacking in zip(placement, _lacking(self.given), strict=True))
        return runs and self.limits.hold(self.graph, placement)

    def seconds(self, placement: Sequence[int]) -> float:
        """Return the seconds of a placement; infinity for one that is impossible."""
        if not self.can(placement):
            return math.inf
        if self.reward is not None:
            return self.reward(placement)
        network, topology, cost, _ = self.given
        if self._contends:
            return contended(network, topology, _strategy(self.given, placement), cost=cost, reached=_REACHED)
        return Simulator(network, topology, cost).start(_strategy(self.given, placement))

    def timeline(self, placement: Sequence[int]) -> Timeline:
        """Return the simulated timeline of a placement."""
        network, topology, cost, _ = self.given
        if self._contends:
            return contended_timeline(network, topology, _strategy(self.given, placement), cost=cost, reached=_REACHED)
        simulator = Simulator(network, topology, cost)
        simulator.start(_strategy(self.given, placement))
        return simulator.timeline()

    @property
    def _contends(self) -> bool:
        """Tell whether the devices draw on one memory at the same time: they share a memory but no cores."""
        memory, processor = self.given.topology.memory_of, self.given.topology.processor_of
        return memory[GPU] == memory[CPU] and processor[GPU] != processor[CPU]


@dataclass(frozen=True)
class _Built:
    """Evaluates strategies of a graph as they are built."""

    graph: FusedGraph
    limits: Limits
    unwanted: Collection[str]
    estimates: Estimates

    def seconds(self, strategy: Strategy) -> float:
        """Return the seconds of a strategy; infinity if it does not fit into the memories, or if a device cannot
        compute a step."""
        split = built(self.graph, strategy, CPU)
        return self.scene(split).seconds(split.placement)

    def scene(self, split: Split) -> _Scene:
        given = _without(self.unwanted, split.graph, self.estimates.network(split.graph, split.whole))
        return _Scene(split.graph, given, self.limits)


def check_known(store: Store, devices: Sequence[Device], dtype: str) -> None:
    """Check that the database knows enough of each device for `place`. Raises BadInput where it does not, DatabaseError
    if it cannot be read."""
    for device in devices:
        check_enough(samples_of(store, device.key, dtype), device.name)


@dataclass(frozen=True)
class _Task:
    """The task that a search method is given. `starts` holds strategies by name."""

    given: Simulated
    starts: Mapping[str, Strategy]
    rng: random.Random
    seconds: float
    reward: Callable[[Sequence[int]], float] | None = None

    def simulator(self) -> Simulator:
        return Simulator(self.given.network, self.given.topology, self.given.cost)

    def searched(self, starts: Mapping[str, Strategy], configs: Proposals) -> Strategy:
        """Search by chains from these starts and by descents, within the task's seconds."""
        options = mcmc.Options(
            seconds=self.seconds / (mcmc.SHARES * len(starts)), threads=len(usable_cpus()), configs=configs
        )
        return mcmc.search(self.simulator(), starts, self.rng, options).strategy


def _exact(task: _Task) -> Strategy:
    return additive(task.given.network, task.given.topology, task.given.cost, training=False)


def _mcmc(task: _Task) -> Strategy:
    """Search by chains with every step whole. They start from all starts, from the optimum of the additive model and
    from a random strategy. The chains get a third of the time, the descents get the rest."""
    configs = partial(configs_in_parts, most=1)
    drawn = random_strategy(task.given.network, task.given.topology, task.rng, configs)
    starts = {**task.starts, "exact": _exact(task), "random": drawn}
    return task.searched(starts, configs)


def _learned(task: _Task) -> Strategy:
    from tuner.studies.learned import Settings, learn

    return learn(task.simulator(), Settings(seconds=task.seconds), task.rng, reward=task.reward).strategy


WAYS: Mapping[str, Callable[[_Task], Strategy]] = {"exact": _exact, "mcmc": _mcmc, "learned": _learned}
IN_PARTS = ("mcmc",)  # methods that search on with steps in parts, for as long again


def _unlimited(topology: Topology) -> Topology:
    """Remove the memory limits: the simulator never frees a value, so `memory_on` enforces the limits instead."""
    return replace(topology, memories=tuple(replace(m, bytes=math.inf) for m in topology.memories))


def _without(unwanted: Collection[str], graph: FusedGraph, given: Simulated) -> Simulated:
    """Return `given` with a GPU that lacks the operators of these names."""
    each = zip(graph.steps, given.network.operators, strict=True)
    lacks = {operator.kind for step, operator in each if operator_of(step) in unwanted}
    devices = list(given.topology.devices)
    devices[GPU] = replace(devices[GPU], lacks=devices[GPU].lacks | lacks)
    return given._replace(topology=replace(given.topology, devices=tuple(devices)))


def _lacking(given: Simulated) -> list[set[int]]:
    """Return, for each step, the devices that cannot compute it."""
    every = set(range(len(given.topology.devices)))
    return [every - set(given.topology.able(o.kind)) for o in given.network.operators]


def _strategy(given: Simulated, placement: Sequence[int]) -> Strategy:
    return tuple(whole(o, d) for o, d in zip(given.network.operators, placement, strict=True))


def _milliseconds(seconds: float) -> str:
    return "cannot" if math.isinf(seconds) else f"{1e3 * seconds:.3f} ms"
