"""A network of a model for the simulator, by what the database knows and without measuring anything. Start at
`estimated_network`; `measured.measured_network` has plans whose every cost was measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from templates.workloads import flop_of
from tuner.devices import Device
from tuner.graph import FusedGraph, Place, TunedStep, runs_on
from tuner.graph.fuse import Step, reads_of
from tuner.placement.baselines import strategy_of
from tuner.placement.fallback import alike, operator_of
from tuner.placement.known import DatabaseCosts, kind_of
from tuner.placement.measured import Simulated
from tuner.placement.memory import bytes_of, weights_of
from tuner.placement.networks import Network, Operator
from tuner.placement.networks.operators import ALL, ITEM
from tuner.placement.simulator.costs import Measured, Work
from tuner.placement.simulator.fitting import FittedCosts
from tuner.placement.topology import DeviceSpec, Topology
from tuning_db.store import Store


def estimated_network(graph: FusedGraph, devices: Sequence[Device], topology: Topology, store: Store) -> Simulated:
    """What `Simulator` takes of a model on `devices`, which `topology` has in this order (`here.measured_topology`).

    A step takes the database's best for its workload, else what the roofline fitted to the device's trials says of its
    flop and bytes: those of plain steps are what they read and write. Layouts and their transforms are not counted. No
    operator is split; the placement is the fallback from the fastest device.

    Raises BadInput where a device has too few trials to fit a roofline to, or a step no device.
    """
    costs = DatabaseCosts(store, [d.key for d in devices], topology.devices, graph.dtype)
    place = {step.out: i for i, step in enumerate(graph.steps)}
    operators, table, whole = [], {}, {}
    for i, step in enumerate(graph.steps):
        reads = list(dict.fromkeys(reads_of(step)))
        inputs = tuple(place[v] for v in reads if v in place)
        weights, outside = float(weights_of(step)), float(sum(bytes_of(v.ty) for v in reads if v not in place))
        kind, flop = operator_of(step), 0.0
        title, made = f"{i} {step.node}", bytes_of(step.out.ty)
        if isinstance(step, TunedStep):
            kind, flop = kind_of(step.workload), flop_of(step.workload) or 0.0
            for d, spec in enumerate(topology.devices):
                cost = costs.cost(step.workload, d)
                if cost is not None and cost.source == "device":
                    table[title, spec.name] = cost.seconds
        shape, all_of_each = (max(made // ITEM, 1),), tuple((ALL,) for _ in inputs)
        operators.append(Operator(title, kind, shape, "-", inputs, all_of_each, flop, weights, extra=outside))
        whole[title] = Work(flop, made + weights + outside + sum(operators[u].bytes for u in inputs))
    network = Network(graph.model.name, tuple(operators), tuple(o.name for o in operators), (0,) * len(operators))
    able = replace(topology, devices=_with_lacks(graph, devices, topology, [o.kind for o in operators]))
    fits = FittedCosts({spec.name: fit for spec, fit in zip(topology.devices, costs.fits, strict=True)})
    return Simulated(network, able, Measured(table, whole, fits), strategy_of("fallback", network, able))


def _with_lacks(
    graph: FusedGraph, devices: Sequence[Device], topology: Topology, kinds: Sequence[str]
) -> tuple[DeviceSpec, ...]:
    """The topology's devices, each lacking the kinds of which it cannot compute some step."""
    found = []
    for device, spec in zip(devices, topology.devices, strict=True):
        runs: dict[Hashable, bool] = {}
        lacks = set(spec.lacks)
        for step, kind in zip(graph.steps, kinds, strict=True):
            if not _runs(graph, step, device, runs):
                lacks.add(kind)
        found.append(replace(spec, lacks=frozenset(lacks)))
    return tuple(found)


def _runs(graph: FusedGraph, step: Step, device: Device, known: dict[Hashable, bool]) -> bool:
    key = alike(step)
    if key not in known:
        known[key] = runs_on(graph, step, Place(device.target, {}))
    return known[key]
