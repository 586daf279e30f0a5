"""This module simulates networks that are shared between the GPU and the CPU of one chip, and compares strategies.

    python benchmarks/placement.py --parts soc

Nothing is measured and no device is needed: every row is a simulation of an inference at batch 1. Each network is
placed in five ways: on the CPU alone, on the GPU alone, by fallback, by the exact sum, and by Markov chains. Fallback
puts the vision operators of detectors on the CPU. The chains may split convolutions and dense layers by their channels
("split"). Networks of the zoo are simulated as they would be built, with the slices and concatenations that steps in
parts need. The networks of Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", are
only shapes here. In them every part is a launch and every piece is a copy. There are two cost models:

sheet    the roofline of the profile's data sheet, of which kernels reach the shares that `Roofline` assumes.
board    the same, slowed down by a factor for each device. The factor is the median, over other networks, of their
         published time on such a chip divided by the sheet's. Times of GPUs are from tables 1 to 3 of Wang et al., "A
         Unified Optimization Approach for CNN Model Inference on Integrated GPUs", and those of the RK3399's CPU from
         TVM's list. A device without published times gets the median of all. The network itself is left out, so that
         its published time can be compared with the prediction.

The bounds are the 5th and 95th percentiles of draws, under which the same strategies are simulated again
(tuner/studies/simulator/perturbed.py). A draw consists of three kinds of ratios:

- measured over modelled seconds of shipped bests of the kind of operator, which were left out of the fit (CPUs' for the
  CPU, OpenCL drivers' for the GPU). "each" draws one for every operator on a device, "alike" one for all operators of a
  kind on it.
- with "board", for each device, one of the ratios whose median slows it down, divided by that median.
- for each strategy, one of the simulator's errors against built modules.

"faster" is the share of draws in which the split is faster than the better of the two devices in that draw. "anew"
repeats the search for the split under the costs of a draw, as on a board where they were measured before. It gives the
median and the range of the gains, for "board" and "alike" only: with "each", a search would find the parts that a draw
happens to make cheap. While both devices work they share the memory's rate (tuner/studies/simulator/contention.py),
which the search itself does not see. The costs of vision operators are based only on their bytes, on both devices,
which is too low.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.placement.fallback import CPU, GPU
from tuner.studies.baselines import strategy_of
from tuner.studies.baselines.additive import additive
from tuner.studies.baselines.whole import whole
from tuner.studies.database_costs import samples_of
from tuner.studies.estimated_network import network_of
from tuner.studies.mcmc import Options, search
from tuner.studies.networks import Network, network
from tuner.studies.parts import all_in_rows, built, configs_in_parts, fewer_parts
from tuner.studies.simulator import CostModel, Roofline, Simulator
from tuner.studies.simulator.contention import contended
from tuner.studies.simulator.fitting import left_out_ratios
from tuner.studies.simulator.perturbed import Case, Perturbation, Ratios, Slowed, between, drawn_cost, simulated_again
from tuner.studies.soap import Strategy
from tuner.studies.topology import DeviceSpec, Topology, topology_of
from tuner.zoo import write_model
from tuning_db import shipped
from tuning_db.store import open_db

PROFILES = ("deeplens", "aisage", "jetson-nano")
SHAPES = ("alexnet", "resnet101", "inception_v3")  # networks of tuner.studies.networks
ZOO = ("squeezenet1.0", "mobilenet1.0", "resnet50_v1", "ssd_mobilenet1.0")
SSD_PIXELS = {"aisage": 300}  # rows and columns (Wang et al., section 4.2); 512 elsewhere
VISION = frozenset({"argsort", "nms", "compact"})
# Milliseconds. Those of GPUs are from Wang et al., tables 1 to 3, "Ours". Those of the RK3399's CPU (only its two A72,
# tuned by AutoTVM) are from github.com/dmlc/tvm/wiki/Benchmark.
PUBLISHED: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("deeplens", "gpu"): {
        "resnet50_v1": 186.15, "mobilenet1.0": 85.58, "squeezenet1.0": 52.10, "ssd_mobilenet1.0": 398.48,
    },
    ("aisage", "gpu"): {
        "resnet50_v1": 345.60, "mobilenet1.0": 78.83, "squeezenet1.0": 66.61, "ssd_mobilenet1.0": 243.16,
    },
    ("jetson-nano", "gpu"): {
        "resnet50_v1": 113.81, "mobilenet1.0": 20.63, "squeezenet1.0": 26.58, "ssd_mobilenet1.0": 135.5,
    },
    ("aisage", "cpu"): {"resnet50_v1": 403.2, "mobilenet1.0": 77.9, "squeezenet1.0": 94.3, "inception_v3": 1304.4},
}  # fmt: skip
# The largest error of the simulator for half of the modules, and for all (RESULTS.md, "Simulated against measured").
MODULES = (0.07, 0.20)
READINGS = ("each", "alike")  # whether the costs of operators of a kind are off independently, or all alike
WORTH = 1.02  # the least gain that counts as one
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A network that is simulated, with its graph if it can be built."""

    network: Network
    graph: FusedGraph | None = None

    def built(self, strategy: Strategy) -> Case:
        """Return the network and strategy as they would be built. Without a graph, they are those of the strategy."""
        if self.graph is None or all(len(config.devices) == 1 for config in strategy):
            return Case(self.network, strategy)
        split = built(self.graph, strategy, CPU)
        net, _ = network_of(split.graph)
        return Case(net, tuple(whole(o, d) for o, d in zip(net.operators, split.placement, strict=True)))

    def seconds(self, strategy: Strategy, topology: Topology, cost: CostModel) -> float:
        """Return the simulated seconds of a strategy, where both devices share the memory's rate."""
        case = self.built(strategy)
        return contended(case.network, topology, case.strategy, cost=cost)


class Subjects:
    """A collection that makes each subject once, by profile and name."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[str, Subject]()

    def of(self, profile: str, name: str) -> Subject:
        if name == "ssd_mobilenet1.0":
            name = f"ssd_{SSD_PIXELS.get(profile, 512)}_mobilenet1.0"
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Subject:
        if name in SHAPES:
            return Subject(network(name, batch=1))
        graph = fuse(load_onnx(write_model(name, self._folder / f"{name}.onnx")))
        return Subject(network_of(graph)[0], graph)


def kernel_ratios() -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the ratios of measured to modelled seconds of shipped bests, by kind of device and kind of operator.

    "matmul" is the name of a dense layer in the networks of SHAPES. Vision operators are left out: they have no flop
    and few bytes, so a roofline says nothing about them, and bests of them exist only for CPUs.
    """
    found: dict[str, dict[str, tuple[float, ...]]] = {"cpu": {}, "gpu": {}}
    with tempfile.TemporaryDirectory() as folder, open_db(str(Path(folder) / "shipped.db")) as store:
        store.add_many(shipped.trials())
        for key in dict.fromkeys(t.device for t in shipped.trials()):
            samples = samples_of(store, key)
            # The peaks are not from a data sheet: they are the highest rates that any sample reached.
            flops = max(s.work.flop / s.seconds for s in samples)
            bandwidth = max(s.work.bytes / s.seconds for s in samples)
            of_kind = found["cpu" if key.kind == "cpu" else "gpu"]
            for kind, ratios in left_out_ratios(samples, DeviceSpec(key.model, "", flops, bandwidth, "")).items():
                if kind in VISION:
                    continue
                of_kind[kind] = of_kind.get(kind, ()) + ratios
    return {device: kinds | {"matmul": kinds["dense"]} for device, kinds in found.items()}


def published_ratios(subjects: Subjects) -> dict[tuple[str, str], dict[str, float]]:
    """Return the ratios of published seconds to those simulated by the sheet, for one device alone.

    The keys are profile and device, then the network.
    """
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (profile, device), times in PUBLISHED.items():
        topology = topology_of(profile)
        found[profile, device] = {}
        for name, milliseconds in times.items():
            net = subjects.of(profile, name).network
            seconds = Simulator(net, topology).start(strategy_of(device, net, topology))
            found[profile, device][name] = milliseconds / 1e3 / seconds
    return found


def others_ratios(
    published: Mapping[tuple[str, str], Mapping[str, float]], profile: str, device: str, name: str
) -> tuple[float, ...]:
    """Return the ratios of other networks on this device, or on all devices if this one has no published times."""
    own = [published[profile, device]] if (profile, device) in published else list(published.values())
    return tuple(ratio for ratios in own for other, ratio in ratios.items() if other != name)


def module_ratios() -> tuple[float, ...]:
    """Return ratios of measured to simulated seconds of modules.

    Half of them are off by the first of `MODULES` at most, and all by the second.
    """
    half, most = MODULES
    errors = [half * (i + 0.5) / 10 for i in range(10)] + [half + (most - half) * (i + 0.5) / 10 for i in range(10)]
    return tuple(1 + sign * error for error in errors for sign in (-1, 1))


@dataclass(frozen=True)
class Basis:
    """A basis of a simulation, which has the costs of a network and the ratios by which they may be off."""

    name: str
    slower: Mapping[str, float]
    ratios: Mapping[str, Ratios]

    @property
    def cost(self) -> CostModel:
        return Slowed(Roofline(), self.slower)


def bases(
    kernels: Mapping[str, Mapping[str, tuple[float, ...]]],
    published: Mapping[tuple[str, str], Mapping[str, float]],
    profile: str,
    name: str,
) -> Iterator[Basis]:
    yield Basis("sheet", {}, {device: Ratios(kinds) for device, kinds in kernels.items()})
    others = {device: others_ratios(published, profile, device, name) for device in kernels}
    slower = {device: median(ratios) for device, ratios in others.items()}
    around = {device: tuple(r / slower[device] for r in ratios) for device, ratios in others.items()}
    yield Basis("board", slower, {device: Ratios(kinds, around[device]) for device, kinds in kernels.items()})


def fallen_back(net: Network, topology: Topology) -> Strategy:
    """Return the strategy that puts all but vision operators on the GPU (Wang et al., section 3.1.2)."""
    devices = list(topology.devices)
    devices[GPU] = replace(devices[GPU], lacks=VISION)
    return strategy_of("fallback", net, replace(topology, devices=tuple(devices)))


def strategies_of(
    subject: Subject, topology: Topology, cost: CostModel, given: argparse.Namespace, proposals: int
) -> dict[str, Strategy]:
    """Return all strategies that are compared.

    "split" is the fastest strategy found under the given costs. It is one of the others if none is faster.
    """
    net = subject.network
    simple: dict[str, Strategy] = {device: strategy_of(device, net, topology) for device in ("cpu", "gpu")}
    simple |= {"fallback": fallen_back(net, topology), "exact": additive(net, topology, cost, training=False)}
    configs = partial(configs_in_parts, most=given.most_parts)
    options = Options(proposals=proposals // len(simple), configs=configs)
    simulator = Simulator(net, topology, cost)
    starts = simple | {"rows": all_in_rows(simulator, simple["exact"])}
    split = search(simulator, starts, random.Random(given.seed), options=options).strategy

    def seconds(strategy: Strategy) -> float:
        return subject.seconds(strategy, topology, cost)

    if subject.graph is not None:
        split, _ = fewer_parts(split, seconds)
    return simple | {"split": min((*simple.values(), split), key=seconds)}


def one_row(
    subject: Subject, profile: str, name: str, basis: Basis, modules: Sequence[float], given: argparse.Namespace
) -> Row:
    topology, cost, draws = topology_of(profile), basis.cost, 20 if given.quick else 200
    strategies = strategies_of(subject, topology, cost, given, 400 if given.quick else 4000)
    row: Row = {"simulation": True, "profile": profile, "network": name, "costs": basis.name, "draws": draws}
    row |= {key: subject.seconds(strategy, topology, cost) for key, strategy in strategies.items()}
    cases = {key: subject.built(strategies[key]) for key in ("cpu", "gpu", "split")}
    better = min(("cpu", "gpu"), key=lambda key: row[key])
    split, alone = strategies["split"], Simulator(cases["split"].network, topology, cost)
    row |= {"better": better, "gain": row[better] / row["split"], "steps": len(split)}
    row["gain_uncontended"] = row[better] / alone.start(cases["split"].strategy)
    row["in_parts"] = sum(len(set(config.devices)) > 1 for config in split)
    row["on_cpu"] = sum(set(config.devices) == {CPU} for config in split)
    for reading in READINGS:
        alike = reading == "alike"
        perturbation = Perturbation(basis.ratios, given.seed, together=alike)
        drawn = simulated_again(cases, topology, cost, perturbation, draws=draws, modules=modules)
        drawn["gain"] = np.minimum(drawn["cpu"], drawn["gpu"]) / drawn["split"]
        row[reading] = {key: between(values) for key, values in drawn.items()}
        row[reading]["faster"] = float((drawn["gain"] > 1).mean())
    if basis.slower:
        row["anew"] = searched_anew(subject, topology, basis, given)
    for device in ("cpu", "gpu"):
        if name in PUBLISHED.get((profile, device), {}):
            row[f"published_{device}"] = PUBLISHED[profile, device][name] / 1e3
    return row


def searched_anew(subject: Subject, topology: Topology, basis: Basis, given: argparse.Namespace) -> list[float]:
    """Search for the split under the costs of each of the first draws, and return the gains, sorted.

    A gain says how many times faster the split is than the better device alone. The result is what a board would show
    on which the costs were measured before.
    """
    gains = []
    for draw in range(3 if given.quick else 10):
        cost = drawn_cost(basis.cost, Perturbation(basis.ratios, given.seed, together=True), draw)
        found = strategies_of(subject, topology, cost, given, 400)
        took = {key: subject.seconds(found[key], topology, cost) for key in ("cpu", "gpu", "split")}
        gains.append(min(took["cpu"], took["gpu"]) / took["split"])
    return sorted(gains)


def told(row: Row) -> str:
    """Describe a row in one line. The bounds are those of "each", then those of "alike"."""
    found = "simulation: {network} on {profile}, costs by {costs}:".format(**row)
    for key in ("cpu", "gpu", "fallback", "exact", "split"):
        found += f" {key} {1e3 * row[key]:.1f} ms"
        if key in row["each"]:
            found += " ({:.0f}-{:.0f}; {:.0f}-{:.0f})".format(*(1e3 * x for r in READINGS for x in row[r][key]))
        found += "," if key != "split" else ";"
    if row["gain"] < WORTH:
        found += " no gain: the {better} alone is as fast".format(**row)
    else:
        found += " split {gain:.2f} times faster than the {better} alone".format(**row)
        found += " ({:.2f}-{:.2f}; {:.2f}-{:.2f})".format(*(x for r in READINGS for x in row[r]["gain"]))
        found += f", faster in {row['each']['faster']:.0%}; {row['alike']['faster']:.0%} of {row['draws']} draws; "
        found += "of {steps} steps {in_parts} in parts and {on_cpu} on the CPU".format(**row)
    if "anew" in row:
        found += "; searched for anew in {} draws {:.2f}, {:.2f}-{:.2f}".format(
            len(row["anew"]), median(row["anew"]), row["anew"][0], row["anew"][-1]
        )
    published = [f"{d} {1e3 * row[f'published_{d}']:.1f}" for d in ("cpu", "gpu") if f"published_{d}" in row]
    return found + (f"; published: {', '.join(published)} ms" if published else "")


def socs(given: argparse.Namespace) -> Iterator[Row]:
    """Simulate all networks, and yield a row for each profile, network and cost model."""
    models = given.models or (("squeezenet1.0", "alexnet") if given.quick else (*ZOO, *SHAPES))
    profiles = given.profiles or (PROFILES[:2] if given.quick else PROFILES)
    unknown = [name for name in models if name not in ZOO + SHAPES]
    if unknown:
        sys.exit(f"--models {unknown[0]}: not known here: give some of {', '.join(ZOO + SHAPES)}")
    kernels, modules = kernel_ratios(), module_ratios()
    with tempfile.TemporaryDirectory() as folder:
        subjects = Subjects(Path(folder))
        published = published_ratios(subjects)
        for profile in profiles:
            for name in models:
                for basis in bases(kernels, published, profile, name):
                    row = one_row(subjects.of(profile, name), profile, name, basis, modules, given)
                    print(told(row), file=sys.stderr, flush=True)
                    yield row


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Summarise the gains, and compare the published times with the simulation.

    The figures are ratios of published to simulated times, and the share of published times within the bounds.
    """
    found: dict[str, Any] = {}
    for row in rows:
        found["simulated_gain_{costs}_{profile}_{network}".format(**row)] = row["gain"]
    for costs in ("sheet", "board"):
        each = [(r, d) for r in rows for d in ("cpu", "gpu") if r["costs"] == costs and f"published_{d}" in r]
        if not each:
            continue
        ratios = [r[f"published_{d}"] / r[d] for r, d in each]
        found[f"published_over_{costs}_median"] = median(ratios)
        found |= {f"published_over_{costs}_min": min(ratios), f"published_over_{costs}_max": max(ratios)}
        for reading in READINGS:
            inside = [r[reading][d][0] <= r[f"published_{d}"] <= r[reading][d][1] for r, d in each]
            found[f"published_within_{costs}_{reading}"] = sum(inside) / len(inside)
    return found
