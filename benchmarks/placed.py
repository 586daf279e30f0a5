"""This module compares simulated with measured times of random placements of a network on devices of this machine.

    python benchmarks/placement.py --parts measured

A placement is random: the device of a step is mostly that of the step before, and changes now and then. Layouts and
kernels are the best for the placement by the costs; costs that the database lacks are measured now. Each placement is
built as a module and verified. All modules are timed in turns in one run.

The simulator gets the times of kernels in networks that one device computes alone, and the times of crossings between
devices. Both are measured before each round of the modules. Devices on the same cores count as one processor. "sum" is
the additive model of `tune plan` with the same costs. There are three figures for the measured time of a module:

quiet    the first quartile of the medians of its blocks of runs; `quiet` is used for kernels and crossings too
took     the median of these medians
fastest  the fastest single run

The benchmark also reports how often one half of the run orders two placements as the other half does, by first
quartiles and by fastest runs. That is the order accuracy that any model can reach.

With --splits, that many more placements are made, in which a fifth of the convolutions and dense layers are in two
parts, one on each device, along their channels or rows. What is built of them (slices, parts, concatenations) is
planned, timed and simulated like any other network. The parts are not tuned.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from models_cpu import tune
from modules import inputs_of, runs_of

from tuner.devices import Device, open_devices
from tuner.devices.sharing import shares_cores
from tuner.graph import DevicePlan, FusedGraph, fuse, load_onnx, lower_placed
from tuner.graph.fusion.split import Split
from tuner.graph.layout.choice import rivals
from tuner.graph.layout.plan import Node, computing, plan
from tuner.module import OnnxReference, VerifyOptions, build_placed, load, verify
from tuner.placement.exact import NetworkPlan, plan_network, planned_states
from tuner.placement.kernel_timing import fitted_link
from tuner.placement.memory import bytes_of
from tuner.placement.step_costs import COPIES, Costs
from tuner.placement.transfer_timing import Crossings
from tuner.report.peers import OURS
from tuner.stages.network import NetworkKernels
from tuner.studies.baselines.whole import whole
from tuner.studies.estimated_network import network_of
from tuner.studies.measured_network import Machine, measured_network
from tuner.studies.parts import built
from tuner.studies.simulator import Simulator
from tuner.studies.soap import PartConfig
from tuner.studies.topology.here import HOST
from tuning_db.store import Store, open_db

CHANGES = (0.02, 0.1, 0.4)  # probabilities that a step is on another device than the step before
IN_PARTS = 0.2  # probability that a step which can be split is split
QUARTERS = 4  # of which a part has one, two or three
# Runs of a network to time its kernels, and runs of crossings. They are repeated before each round of the modules,
# because other work may disturb the machine and its speed may change.
RUNS, CROSSED = 4, 4
BLOCK_SECONDS = 0.2
WITHIN = 0.15  # relative error that counts as close
TRUTHS = ("quiet", "took", "fastest")  # the measured times that simulated ones are compared with


def quiet(times: Sequence[float]) -> float:
    """Estimate the time of something while nothing else runs on the machine.

    It is the first quartile of windows, or of blocks of runs, because other work comes and goes. With a lower quantile,
    or with the median, two halves of a run agree less.
    """
    return float(np.quantile(times, 0.25))


def placements(graph: FusedGraph, nodes: Sequence[Node], count: int, rng: random.Random) -> Iterator[dict[int, int]]:
    """Yield `count` different random placements: the device of every step by its node's index.

    A step is only placed on a device that can compute it.
    """
    seen: set[tuple[int, ...]] = set()
    steps = range(len(graph.parameters), len(graph.parameters) + len(graph.steps))
    for i in itertools.count():
        if len(seen) == count:
            return
        device, chosen = rng.randrange(2), {}
        for n in steps:
            able = sorted({s.makes.device for s in nodes[n].states if s.seconds < float("inf")})
            device = 1 - device if rng.random() < CHANGES[i % len(CHANGES)] else device
            chosen[n] = device if device in able else able[0]
        if tuple(chosen.values()) not in seen:
            seen.add(tuple(chosen.values()))
            yield chosen


def divided(graph: FusedGraph, where: Sequence[int], rng: random.Random, host: int) -> Split:
    """Split some steps of a placement on two devices into parts, at random."""
    network, _ = network_of(graph)
    strategy = []
    for operator, device in zip(network.operators, where, strict=True):
        dims = [i for i, axis in enumerate(operator.axes) if axis in "pa" and operator.shape[i] >= QUARTERS]
        if not dims or rng.random() >= IN_PARTS:
            strategy.append(whole(operator, device))
            continue
        dim, first = rng.choice(dims), rng.randrange(1, QUARTERS)
        degrees = tuple(QUARTERS if i == dim else 1 for i in range(len(operator.shape)))
        strategy.append(PartConfig(degrees, (device,) * first + (1 - device,) * (QUARTERS - first)))
    return built(graph, tuple(strategy), host)


def placed(nodes: Sequence[Node], where: dict[int, int]) -> tuple[Node, ...]:
    """Restrict nodes to the states on the devices of a placement."""
    kept = [tuple(s for s in n.states if s.makes.device == where.get(i, s.makes.device)) for i, n in enumerate(nodes)]
    return tuple(replace(n, states=s) for n, s in zip(nodes, kept, strict=True))


def simulated(name: str, graph: FusedGraph, devices: list[Device], found: NetworkPlan, costs: Costs) -> float:
    """Return the simulated seconds of a plan."""
    results = [v for v in dict.fromkeys(graph.outputs) if hasattr(v, "ty")]
    sizes = [bytes_of(v.ty) for v in (*graph.parameters, *(s.out for s in graph.steps), *results)]
    links = [(a, b, *costs.link(a, b)) for a, b in itertools.permutations(range(len(devices)), 2)]
    names, cores = [d.name for d in devices], [HOST if shares_cores(d) else d.name for d in devices]
    machine = Machine(names, links, cores)
    given = measured_network(name, found.nodes, found.moving, states=found.plan.states, sizes=sizes, machine=machine)
    return Simulator(given.network, given.topology, given.cost).start(given.strategy)


def planned(graph: FusedGraph, devices: list[Device], store: Store, **given: Any) -> tuple[NetworkPlan, Costs]:
    """Return the best plan and its costs, which are measured where the store lacks them. For `given` see `Costs`."""
    costs = Costs(devices, store, **given)
    choices = [rivals((s.workload for s in graph.tuned), d, store) for d in devices]
    return plan_network(graph, devices, choices, costs), costs


def timed_anew(found: NetworkPlan, nodes: tuple[Node, ...]) -> NetworkPlan:
    """Return a plan with the same states, whose seconds are those of `nodes`."""
    took = computing(nodes, found.plan.states)
    seconds = found.plan.seconds + sum(took) - sum(found.plan.computing)
    return replace(found, nodes=nodes, plan=replace(found.plan, computing=took, seconds=seconds))


@dataclass(eq=False)
class Case:
    """A case, which is one placement.

    `graph` is its graph, and `where` holds the device of the step of every node. `best` is the best plan without a
    given placement, and `found` is the best plan for this placement.
    """

    graph: FusedGraph
    where: dict[int, int]
    best: NetworkPlan
    found: NetworkPlan


class Windows:
    """A collection that times windows of kernels and of crossings between devices.

    Kernels are timed in networks that one device computes alone, for all graphs.
    """

    def __init__(self, devices: list[Device], cases: Sequence[Case]) -> None:
        self._devices = devices
        best = {case.graph: case.best for case in cases}  # placements without splits share one graph
        self._kernels = {graph: self._on_each(graph, found) for graph, found in best.items()}
        self._found = {(graph, d): [] for graph in best for d in range(len(devices))}
        ways = itertools.permutations(range(len(devices)), 2)
        self._crossings = {(a, b): Crossings(devices[a], devices[b], COPIES) for a, b in ways}
        self._crossed = {way: [] for way in self._crossings}

    def _on_each(self, graph: FusedGraph, best: NetworkPlan) -> list[NetworkKernels]:
        """Return, for each device, the kernels with which the plan would compute the whole network there."""
        made = []
        for d, device in enumerate(self._devices):
            steps = range(len(graph.parameters), len(graph.parameters) + len(graph.steps))
            nodes = placed(best.nodes, dict.fromkeys(steps, d))
            alone = planned_states(graph, nodes, plan(nodes, best.moving).states)
            device_plan = DevicePlan(device.target, {}, {out: choice.config for out, choice in alone.kernels.items()})
            made.append(
                NetworkKernels(lower_placed(graph, [device_plan], [0] * len(graph.steps), alone.blocks), device)
            )
        return made

    @property
    def graphs(self) -> Collection[FusedGraph]:
        return self._kernels.keys()

    def open(self) -> None:
        """Time one more window of all kernels and crossings."""
        for (graph, d), found in self._found.items():
            found.append(self._kernels[graph][d].seconds(RUNS))
        for way, found in self._crossed.items():
            times = self._crossings[way].seconds(1, CROSSED)
            found.append({size: median(each) for size, each in times.items()})

    @property
    def links(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Return the latency and the seconds per byte between devices, as `Costs` takes them."""
        return {
            way: fitted_link(COPIES, [quiet([w[size] for w in windows]) for size in COPIES])
            for way, windows in self._crossed.items()
        }

    def seconds(self, graph: FusedGraph) -> list[dict[str, float]]:
        """Return the seconds of every kernel in a graph, for each device."""
        each = [self._found[graph, d] for d in range(len(self._devices))]
        return [{kernel: quiet([w[kernel] for w in windows]) for kernel in windows[0]} for windows in each]


def cases(
    graph: FusedGraph, devices: list[Device], store: Store, given: argparse.Namespace, rng: random.Random
) -> Iterator[Case]:
    """Yield the placements to measure: first those of whole steps, then those with some steps in parts."""
    (best, _), first = planned(graph, devices, store), len(graph.parameters)

    def case(graph: FusedGraph, where: dict[int, int], best: NetworkPlan) -> Case:
        nodes = placed(best.nodes, where)
        return Case(graph, where, best, replace(best, nodes=nodes, plan=plan(nodes, best.moving)))

    for where in placements(graph, best.nodes, given.placements, rng):
        yield case(graph, where, best)
    host = next(d for d, device in enumerate(devices) if device.is_host)
    for where in placements(graph, best.nodes, given.splits, rng):
        split = divided(graph, [where[first + i] for i in range(len(graph.steps))], rng, host)
        at = {first + i: device for i, device in enumerate(split.placement)}
        yield case(split.graph, at, planned(split.graph, devices, store)[0])


def timed(given: argparse.Namespace, devices: list[Device], store: Store, model: Path) -> Iterator[dict[str, Any]]:
    """Build all placements, then time kernels and modules, then simulate. Yield a row for each placement."""
    graph, folder = fuse(load_onnx(model)), model.parent
    every, sources = [], {}
    for i, case in enumerate(cases(graph, devices, store, given, random.Random(given.seed))):
        to = folder / f"{given.model}-{i}"
        states = planned_states(case.graph, case.found.nodes, case.found.plan.states)
        build_placed(case.graph, devices, states, directory=to, store=store)
        verify(load(to), OnnxReference(model), VerifyOptions(seeds=[0]))
        every.append(case)
        sources[str(i)] = OURS, to
        count = given.placements + given.splits
        print(f"{given.model}: placement {i + 1} of {count} is built", file=sys.stderr, flush=True)
    windows = Windows(devices, every)
    runs, _ = runs_of(
        sources, inputs_of(folder / f"{given.model}-0", 0), given.rounds, lambda _: windows.open(), BLOCK_SECONDS
    )
    links = windows.links
    anew = {own: planned(own, devices, store, networks=windows.seconds(own), links=links) for own in windows.graphs}
    for i, case in enumerate(every):
        again, costs = anew[case.graph]
        found = timed_anew(case.found, placed(again.nodes, case.where))
        copies = sum(m.before.device != m.to.device for m in found.plan.moves)
        row = {"network": given.model, "devices": given.on, "second": sum(case.where.values()), "copies": copies}
        row |= {"steps": len(case.graph.steps), "parts": case.graph is not graph, "sum": found.plan.seconds}
        yield row | {"simulated": simulated(given.model, case.graph, devices, found, costs), "runs": runs[str(i)]}


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Tune the network, measure and simulate its placements, and yield a row for each."""
    devices = open_devices(given.on.split(","))
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model, database = folder / f"{given.model}.onnx", folder / "placed.db"
        if not model.exists():
            tune("zoo", given.model, "-o", model)
        for device in devices:
            tune("model", model, "--device", device.name, "--db", database, "--minutes", given.minutes)
        with open_db(str(database)) as store:
            rows = list(timed(given, devices, store, model))
    for row in rows:
        blocks = row.pop("runs")
        medians, fastest = [median(block) for block in blocks], [min(block) for block in blocks]
        row |= {"quiet": quiet(medians), "took": median(medians), "fastest": min(fastest), "load": os.getloadavg()[0]}
        row["halves"] = [quiet(medians[half::2]) for half in (0, 1)]
        row["fastest_halves"] = [min(fastest[half::2]) for half in (0, 1)]
        text = (
            "{network} on {devices}: {second} of {steps} steps on the second device, {copies} copies: simulated "
            "{0:.3f} ms, sum {1:.3f}, quiet {2:.3f}, took {3:.3f}, fastest {4:.3f} (load of the machine {load:.1f})"
        )
        times = (1e3 * row[key] for key in ("simulated", "sum", *TRUTHS))
        print(text.format(*times, **row), file=sys.stderr)
        yield row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the errors of the simulator and of the sum, and how often they order two placements as measured."""
    found: dict[str, Any] = {"measured_load_max": max(r["load"] for r in rows)}
    for name, halves in (("repeated", "halves"), ("fastest_repeated", "fastest_halves")):
        found[f"{name}_order_accuracy"] = _agreement([r[halves][0] for r in rows], [r[halves][1] for r in rows])
    for key, truth in itertools.product(("simulated", "sum"), TRUTHS):
        errors = [abs(r[key] / r[truth] - 1) for r in rows]
        name = f"{key}_vs_{truth}"
        found[f"{name}_error_median"] = median(errors)
        found[f"{name}_within_15_percent"] = sum(e <= WITHIN for e in errors) / len(errors)
        found[f"{name}_order_accuracy"] = _agreement([r[key] for r in rows], [r[truth] for r in rows])
    return found


def _agreement(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the share of pairs that both lists order the same way, or None if there are no pairs."""
    pairs = list(itertools.combinations(range(len(one)), 2))
    return sum((one[i] - one[j]) * (other[i] - other[j]) > 0 for i, j in pairs) / len(pairs) if pairs else None
