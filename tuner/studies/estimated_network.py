"""Converts a model for the simulator by what the database knows, without measuring anything. Start at
`estimated_network`; `measured_network.measured_network` converts plans whose every cost was measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from tvm.ir import Var

from templates.workloads import Conv2d, anchor_of, flop_of, kind_of
from tuner.devices import Device
from tuner.graph import DevicePlan, FusedGraph, TunedStep, runs_on
from tuner.graph.fusion.split import channels_of, reach_of, rows_of, unit_of
from tuner.graph.fusion.steps import AnchorStep, Step, reads_of
from tuner.graph.ir.bindings import shape_of
from tuner.placement.fallback import alike, operator_of
from tuner.placement.memory import bytes_of, weights_of
from tuner.studies.baselines import strategy_of
from tuner.studies.database_costs import DatabaseCosts, work_of
from tuner.studies.measured_network import Simulated
from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.networks.operators import ALL, ITEM, SAME, Read
from tuner.studies.simulator.costs import Measured, Work
from tuner.studies.simulator.fitting import FittedCosts
from tuner.studies.topology import Topology
from tuning_db.record import Workload
from tuning_db.store import Store


def estimated_network(graph: FusedGraph, devices: Sequence[Device], topology: Topology, store: Store) -> Simulated:
    """Return what `Simulator` takes for a model on `devices`, which `topology` lists in the same order (see
    `topology.here.measured_topology`).

    A step takes the database's best seconds for its workload. Without them it takes the seconds of the roofline that is
    fitted to the device's trials, by its flop and bytes; the bytes of a plain step are what it reads and writes.
    Layouts and their transforms are not counted. No operator is split. The placement is the fallback from the fastest
    device.

    Raises BadInput where a device has too few trials to fit a roofline, or where no device computes some step.
    """
    return Estimates(devices, topology, store, graph.dtype).network(graph)


class Estimates:
    """Estimates several graphs as `estimated_network` does, and looks up what is known of the devices only once."""

    def __init__(self, devices: Sequence[Device], topology: Topology, store: Store, dtype: str) -> None:
        self._devices, self._topology = devices, topology
        self._costs = DatabaseCosts(store, [d.key for d in devices], topology.devices, dtype)
        self._runs: list[dict[Hashable, bool]] = [{} for _ in devices]

    def network(self, graph: FusedGraph, whole: Mapping[Var, AnchorStep] = MappingProxyType({})) -> Simulated:
        """Return what `Simulator` takes for a graph. `whole` maps the result of a part (see `tuner.graph.fusion.split`)
        to the step that it is a part of. A part without a trial of its own takes its share of the whole step's
        seconds."""
        network, works = network_of(graph)
        table = {}
        for step, operator in zip(graph.steps, network.operators, strict=True):
            if not isinstance(step, TunedStep):
                continue
            for d, spec in enumerate(self._topology.devices):
                seconds = _known_seconds(self._costs, step.workload, whole.get(step.out), d)
                if seconds is not None:
                    table[operator.name, spec.name] = seconds
        able = able_topology(graph, network, self._devices, topology=self._topology, runs=self._runs)
        specs = zip(self._topology.devices, self._costs.fits, strict=True)
        cost = Measured(table, works, FittedCosts({spec.name: fit for spec, fit in specs}))
        return Simulated(network, able, cost, strategy_of("fallback", network, able))


def _known_seconds(costs: DatabaseCosts, workload: Workload, whole: AnchorStep | None, device: int) -> float | None:
    """Return seconds by trials of the workload, or of the step `whole` that it is a part of; None where there are
    none."""
    cost = costs.cost(workload, device)
    if cost is None or cost.source == "device":
        return None if cost is None else cost.seconds
    known = None if whole is None else costs.cost(whole.workload, device)
    if whole is None or known is None or known.source != "device":
        return None
    fit, part, work = costs.fits[device], work_of(workload), work_of(whole.workload)
    if part is None or work is None:
        return None
    return known.seconds * fit.seconds(kind_of(workload), part) / fit.seconds(kind_of(whole.workload), work)


def network_of(graph: FusedGraph) -> tuple[Network, Mapping[str, Work]]:
    """Return a model's steps as operators of a simulated network, and by name the flop and bytes of each.

    Images keep their own dimensions; any other value has a single dimension as large as all of it. Steps that can be
    split (see `tuner.graph.fusion.split`) can be split along their channels and rows.
    """
    place = {step.out: i for i, step in enumerate(graph.steps)}
    operators, works = list[NetworkOperator](), dict[str, Work]()
    for i, step in enumerate(graph.steps):
        reads = list(dict.fromkeys(reads_of(step)))
        inputs = tuple(place[v] for v in reads if v in place)
        weights, outside = float(weights_of(step)), float(sum(bytes_of(v.ty) for v in reads if v not in place))
        kind, flop = operator_of(step), 0.0
        title, made = f"{i} {step.node}", bytes_of(step.out.ty)
        if isinstance(step, TunedStep):
            kind, flop = kind_of(step.workload), flop_of(step.workload) or 0.0
        shape, axes = _dimensions(step)
        needs = tuple(_needs(step, v, shape, operators[place[v]].shape) for v in reads if v in place)
        operators.append(NetworkOperator(title, kind, shape, axes, inputs, needs, flop, weights, extra=outside))
        works[title] = Work(flop, made + weights + outside + sum(operators[u].bytes for u in inputs))
    return Network(graph.model.name, tuple(operators), tuple(o.name for o in operators), (0,) * len(operators)), works


def _dimensions(step: Step) -> tuple[tuple[int, ...], str]:
    """Return the shape of a step's result, counted in float32 values, and its axes for `NetworkOperator`.

    The axes of an image are sample, channels, rows and columns; half precision has half as many columns."""
    made, image = max(bytes_of(step.out.ty) // ITEM, 1), shape_of(step.out)
    dense = isinstance(step, AnchorStep) and step.workload.op == "dense"
    channels = "p" if isinstance(step, AnchorStep) and channels_of(step) >= 2 * unit_of(step) else "-"
    if image is None or len(image) != 4 or dense or not prod(image):
        return (made,), channels
    rows = "a" if isinstance(step, AnchorStep) and rows_of(step) > 1 else "-"
    return (*image[:3], max(made // prod(image[:3]), 1)), f"-{channels}{rows}-"


def _needs(step: Step, read: Var, shape: tuple[int, ...], given: tuple[int, ...]) -> tuple[Read, ...]:
    """Return what the parts of a step that makes `shape` need of a value `read` of the shape `given`, one `Read` a
    dimension.

    Both shapes are as `_dimensions` returns them. Of an addend a part needs only the piece that it makes itself. Of a
    convolution's data it needs the rows that its kernel reaches.
    """
    everything = (ALL,) * len(given)
    if not isinstance(step, AnchorStep):
        return everything
    if not read.same_as(step.data):
        return SAME[: len(given)] if shape == given else everything
    conv = anchor_of(step.workload)
    if not isinstance(conv, Conv2d) or len(given) != 4:
        return everything
    unit, width = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    channels = Read(1, width // unit, width // unit) if conv.groups > 1 and width % unit == 0 else ALL
    return ALL, channels, Read(2, conv.strides[0], reach_of(conv), -conv.padding[0]), ALL


def able_topology(
    graph: FusedGraph,
    network: Network,
    devices: Sequence[Device],
    *,
    topology: Topology,
    runs: Sequence[dict[Hashable, bool]] | None = None,
) -> Topology:
    """Return the topology with devices that lack every kind of which they cannot compute some step of the network.
    `runs` remembers for each device which steps it can compute, and is extended."""
    found = []
    for device, spec, known in zip(devices, topology.devices, runs or [{} for _ in devices], strict=True):
        lacks = set(spec.lacks)
        for step, operator in zip(graph.steps, network.operators, strict=True):
            if not _runs(graph, step, device, known):
                lacks.add(operator.kind)
        found.append(replace(spec, lacks=frozenset(lacks)))
    return replace(topology, devices=tuple(found))


def _runs(graph: FusedGraph, step: Step, device: Device, known: dict[Hashable, bool]) -> bool:
    key = alike(step)
    if key not in known:
        known[key] = runs_on(graph, step, DevicePlan(device.target, {}))
    return known[key]
