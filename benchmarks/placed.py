"""Simulated against measured: random placements of a zoo network on devices that are here. `placement.py --parts
measured` runs it.

Every step is sent to a device by a chain that changes it now and then, layouts and kernels are the best for that
placement by the costs (the database's, what it lacks measured now), and the module is built, verified and timed, all
placements in turns in one run. The simulator has what kernels take in the network where one device computes all of it,
links as they were measured, and devices on the same cores as one processor; "sum" is the additive model of `tune plan`
with the same costs. "took" is the median of blocks of runs, "least" the least of them, and "fastest" the one fastest
run, which other work on the machine disturbs least. How often the blocks of one half of the run order two placements as
those of the other half (by their medians, or by their fastest runs) is what any model can reach.

With --splits, as many placements are made besides in which a fifth of the convolutions and dense layers are in two
parts, one on each device, along their channels or rows: what is built of these (slices, parts, concatenations) is
planned, timed and simulated as any other network. Parts are not tuned.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from models_cpu import tune
from modules import inputs_of, runs_of

from tuner.devices import Device, open_devices
from tuner.devices.sharing import shares_cores
from tuner.graph import FusedGraph, Place, fuse, load_onnx, lower_placed
from tuner.graph.choice import rivals
from tuner.graph.layouts import Node, computing, plan
from tuner.graph.split import Split
from tuner.module import OnnxReference, build_placed, load, verify
from tuner.placement.baselines.whole import whole
from tuner.placement.costs import Costs
from tuner.placement.estimated import network_of
from tuner.placement.exact import NetworkPlan, plan_network, planned_states
from tuner.placement.measured import measured_network
from tuner.placement.memory import bytes_of
from tuner.placement.parts import built
from tuner.placement.simulator import Simulator
from tuner.placement.soap import Config
from tuner.placement.topology.here import HOST
from tuner.report.peers import OURS
from tuner.stages.network import kernel_seconds
from tuning_db.store import Store, open_db

CHANGES = (0.02, 0.1, 0.4)  # how often a step is elsewhere than the one before it
IN_PARTS = 0.2  # how often a step is split that can be
QUARTERS = 4  # a part has one, two or three
RUNS, WINDOWS = 33, 3  # of a network to time its kernels: in a single short window a neighbour may be at work
WITHIN = 0.15
TRUTHS = ("took", "least", "fastest")


def placements(graph: FusedGraph, nodes: Sequence[Node], count: int, rng: random.Random) -> Iterator[dict[int, int]]:
    """For each, the device of every step, by its node's index, among those that can compute it; all different."""
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
    """A placement of steps on two devices, with some of them in parts."""
    network, _ = network_of(graph)
    strategy = []
    for operator, device in zip(network.operators, where, strict=True):
        dims = [i for i, axis in enumerate(operator.axes) if axis in "pa" and operator.shape[i] >= QUARTERS]
        if not dims or rng.random() >= IN_PARTS:
            strategy.append(whole(operator, device))
            continue
        dim, first = rng.choice(dims), rng.randrange(1, QUARTERS)
        degrees = tuple(QUARTERS if i == dim else 1 for i in range(len(operator.shape)))
        strategy.append(Config(degrees, (device,) * first + (1 - device,) * (QUARTERS - first)))
    return built(graph, tuple(strategy), host)


def placed(nodes: Sequence[Node], where: dict[int, int]) -> tuple[Node, ...]:
    """With those states alone that are where they are to be."""
    kept = [tuple(s for s in n.states if s.makes.device == where.get(i, s.makes.device)) for i, n in enumerate(nodes)]
    return tuple(replace(n, states=s) for n, s in zip(nodes, kept, strict=True))


def simulated(name: str, graph: FusedGraph, devices: list[Device], found: NetworkPlan, costs: Costs) -> float:
    """Seconds of a plan."""
    results = [v for v in dict.fromkeys(graph.outputs) if hasattr(v, "ty")]
    sizes = [bytes_of(v.ty) for v in (*graph.parameters, *(s.out for s in graph.steps), *results)]
    links = [(a, b, *costs.link(a, b)) for a, b in itertools.permutations(range(len(devices)), 2)]
    names, cores = [d.name for d in devices], [HOST if shares_cores(d) else d.name for d in devices]
    given = measured_network(name, found.nodes, found.moving, found.plan.states, sizes, names, links, cores)
    return Simulator(given.network, given.topology, given.cost).start(given.strategy)


def planned(
    graph: FusedGraph, devices: list[Device], store: Store, networks: Sequence[Mapping[str, float]] = ()
) -> tuple[NetworkPlan, Costs]:
    """The best plan, and its costs, which were measured where the store lacked them. `networks`: see `Costs`."""
    costs = Costs(devices, store, networks=networks)
    choices = [rivals((s.workload for s in graph.tuned), d, store) for d in devices]
    return plan_network(graph, devices, choices, costs), costs


def timed_anew(found: NetworkPlan, nodes: tuple[Node, ...]) -> NetworkPlan:
    """A plan in the same states, of which `nodes` have other seconds."""
    took = computing(nodes, found.plan.states)
    seconds = found.plan.seconds + sum(took) - sum(found.plan.computing)
    return replace(found, nodes=nodes, plan=replace(found.plan, computing=took, seconds=seconds))


def kernels_in_networks(graph: FusedGraph, devices: list[Device], best: NetworkPlan) -> list[dict[str, float]]:
    """Of each device: seconds of the kernels by which the plan would compute all of the network there."""
    found = []
    for d, device in enumerate(devices):
        steps = range(len(graph.parameters), len(graph.parameters) + len(graph.steps))
        nodes = placed(best.nodes, dict.fromkeys(steps, d))
        alone = planned_states(graph, nodes, plan(nodes, best.moving).states)
        place = Place(device.target, {}, {out: choice.config for out, choice in alone.kernels.items()})
        network = lower_placed(graph, [place], [0] * len(graph.steps), alone.blocks)
        times = [kernel_seconds(network, device, RUNS) for _ in range(WINDOWS)]
        found.append({kernel: median(each[kernel] for each in times) for kernel in times[0]})
    return found


Scene = tuple[tuple[NetworkPlan, Costs], tuple[NetworkPlan, Costs]]


def scene_of(graph: FusedGraph, devices: list[Device], store: Store) -> Scene:
    """The best plan, and the same nodes with what kernels take in networks that one device computes."""
    best = planned(graph, devices, store)
    return best, planned(graph, devices, store, kernels_in_networks(graph, devices, best[0]))


def cases(
    graph: FusedGraph, devices: list[Device], store: Store, given: argparse.Namespace, rng: random.Random
) -> Iterator[tuple[FusedGraph, dict[int, int], Scene]]:
    """What is built, where its steps are, and its costs: whole steps first, then with some of them in parts."""
    scene, first = scene_of(graph, devices, store), len(graph.parameters)
    for where in placements(graph, scene[0][0].nodes, given.placements, rng):
        yield graph, where, scene
    host = next(d for d, device in enumerate(devices) if device.is_host)
    for where in placements(graph, scene[0][0].nodes, given.splits, rng):
        split = divided(graph, [where[first + i] for i in range(len(graph.steps))], rng, host)
        at = {first + i: device for i, device in enumerate(split.placement)}
        yield split.graph, at, scene_of(split.graph, devices, store)


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each placement."""
    name, devices, rng = given.model, open_devices(given.on.split(",")), random.Random(given.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model, database = folder / f"{name}.onnx", folder / "placed.db"
        if not model.exists():
            tune("zoo", name, "-o", model)
        for device in devices:
            tune("model", model, "--device", device.name, "--db", database, "--minutes", given.minutes)
        graph, rows, sources = fuse(load_onnx(model)), {}, {}
        with open_db(str(database)) as store:
            for i, (own, where, scene) in enumerate(cases(graph, devices, store, given, rng)):
                (best, _), (timed, costs) = scene
                nodes = placed(best.nodes, where)
                found = replace(best, nodes=nodes, plan=plan(nodes, best.moving))
                to = folder / f"{name}-{i}"
                build_placed(own, devices, planned_states(own, nodes, found.plan.states), to, store)
                verify(load(to), OnnxReference(model), seeds=[0])
                found = timed_anew(found, placed(timed.nodes, where))
                copies = sum(m.before.device != m.to.device for m in found.plan.moves)
                rows[str(i)] = {"network": name, "devices": given.on, "second": sum(where.values()), "copies": copies}
                rows[str(i)] |= {"steps": len(own.steps), "parts": own is not graph, "sum": found.plan.seconds}
                rows[str(i)]["simulated"] = simulated(name, own, devices, found, costs)
                sources[str(i)] = OURS, to
                count = given.placements + given.splits
                print(f"{name}: placement {i + 1} of {count} is built", file=sys.stderr, flush=True)
        runs, _ = runs_of(sources, inputs_of(folder / f"{name}-0", 0), given.rounds)
    for i, row in rows.items():
        medians, fastest = [median(block) for block in runs[i]], [min(block) for block in runs[i]]
        row |= {"took": median(medians), "least": min(medians), "fastest": min(fastest), "load": os.getloadavg()[0]}
        row["halves"] = [median(medians[half::2]) for half in (0, 1)]
        row["fastest_halves"] = [min(fastest[half::2]) for half in (0, 1)]
        text = (
            "{network} on {devices}: {second} of {steps} steps on the second device, {copies} copies: simulated "
            "{0:.3f} ms, sum {1:.3f}, took {2:.3f}, least {3:.3f}, fastest {4:.3f} (load of the machine {load:.1f})"
        )
        times = (1e3 * row[key] for key in ("simulated", "sum", *TRUTHS))
        print(text.format(*times, **row), file=sys.stderr)
        yield row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far the simulator, and the sum, are off, and how often they order two placements as measuring does."""
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
    """In what share of pairs both say which is less; None if there are no pairs."""
    pairs = list(itertools.combinations(range(len(one)), 2))
    return sum((one[i] - one[j]) * (other[i] - other[j]) > 0 for i, j in pairs) / len(pairs) if pairs else None
