"""Strategies of a network that is built: each step is whole, or in parts along its output channels or rows. Start at
`built`. `read_strategy_of` and `write_strategy_of` handle files that a person edits; `part_tasks` lists what there is
to tune in the steps that these files split.

The parts of Jia, Zaharia and Aiken ("Beyond Data and Model Parallelism for Deep Neural Networks", section 4) are equal.
To give a device three quarters, a strategy has four parts, three of them on that device; these are built as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise, product
from math import gcd
from pathlib import Path

from tvm.ir import Var

from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, tasks_of
from tuner.graph.fusion.split import ROWS, Share, Split, channels_of, joined, rows_of, split_steps, unit_of
from tuner.graph.fusion.steps import AnchorStep, reads_of
from tuner.placement.fallback import CPU, GPU
from tuner.placement.memory import memory_on
from tuner.studies.baselines.whole import whole
from tuner.studies.estimated_network import able_topology, network_of
from tuner.studies.networks import NetworkOperator
from tuner.studies.simulator import Simulator
from tuner.studies.soap import PartConfig, Strategy, devices_in, read_strategy, write_strategy
from tuner.studies.soap.configs import cut
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology
from tuner.tasks import Task

MOST_PARTS = 4
_BLOCKS = (16, 8, 4)  # channels of a layout block; parts of whole blocks are joined without a copy


def configs_in_parts(operator: NetworkOperator, topology: Topology, most: int = MOST_PARTS) -> tuple[PartConfig, ...]:
    """Return the configs that a search proposes: the whole operator on a device, or up to `most` parts on two devices.

    The parts lie along a parameter dimension, or along the rows of an operator that has parameters.
    """
    axes = "pa" if operator.weights else "p"
    dims = tuple(i for i, axis in enumerate(operator.axes) if axis in axes)
    return _configs(topology.able(operator.kind), dims, operator.shape, most)


@lru_cache(maxsize=1024)
def _configs(able: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...], most: int) -> tuple[PartConfig, ...]:
    found = [PartConfig((1,) * len(shape), (device,)) for device in able]
    for dim, (one, other) in product(dims, combinations(able, 2)):
        for degree in range(2, min(most, shape[dim]) + 1):
            degrees = tuple(degree if i == dim else 1 for i in range(len(shape)))
            first = [k for k in range(1, degree) if gcd(k, degree) == 1]  # 2 of 4 equals 1 of 2
            found += [PartConfig(degrees, (one,) * k + (other,) * (degree - k)) for k in first]
    return tuple(found)


def all_in_rows(simulator: Simulator, otherwise: Strategy) -> Strategy:
    """Return the fastest strategy that splits the rows of all steps that can be split alike, the others as in
    `otherwise`.

    It is a start for searches. From whole steps a search does not get there one step at a time, if what lies between
    two steps takes long to copy.
    """
    ways: list[dict[tuple[int, ...], PartConfig]] = []
    for operator in simulator.network.operators:
        configs = configs_in_parts(operator, simulator.topology)
        ways.append({c.devices: c for c in configs if len(c.degrees) > ROWS and c.degrees[ROWS] > 1})
    every = dict.fromkeys(devices for way in ways for devices in way)
    found = [tuple(way.get(d, old) for way, old in zip(ways, otherwise, strict=True)) for d in every]
    return min(found, key=simulator.start, default=otherwise)


def fewer_parts(
    strategy: Strategy, seconds: Callable[[Strategy], float], go_on: Callable[[], bool] = lambda: True
) -> tuple[Strategy, float]:
    """Make steps whole again, one after the other, where their parts do not pay by `seconds`; return the strategy and
    its seconds. `seconds` may count the strategy as it is built: the search itself does not see slices and
    concatenations. `go_on` may end this early."""
    took, left = seconds(strategy), [i for i, config in enumerate(strategy) if len(config.devices) > 1]
    gained = True
    while gained:
        gained = False
        for i in list(left):
            if not go_on():
                return strategy, took
            for device in dict.fromkeys(strategy[i].devices):
                whole_here = PartConfig((1,) * len(strategy[i].degrees), (device,))
                fewer = (*strategy[:i], whole_here, *strategy[i + 1 :])
                if (less := seconds(fewer)) < took:
                    strategy, took, gained = fewer, less, True
            if len(strategy[i].devices) == 1:
                left.remove(i)
    return strategy, took


def built(graph: FusedGraph, strategy: Strategy, host: int) -> Split:
    """Return the network with its steps in the parts that a strategy for `network_of(graph)` gives. `host` is the index
    of the CPU. The parts of a step are joined on the device of all readers if there is only one, else on the device
    that makes most of them.

    Raises BadInput, naming the node, for a step that has fewer channels, or groups of channels, than parts, or whose
    channels and rows are both split.
    """
    shares = {
        step.out: shares_of(step, config)
        for step, config in zip(graph.steps, strategy, strict=True)
        if isinstance(step, AnchorStep) and len(config.devices) > 1
    }
    placement = [
        _most(shares[step.out]) if step.out in shares else config.devices[0]
        for step, config in zip(graph.steps, strategy, strict=True)
    ]
    readers: dict[Var, set[int]] = {}
    for step, device in zip(graph.steps, placement, strict=True):
        for var in reads_of(step):
            readers.setdefault(var, set()).add(device)
    for i, step in enumerate(graph.steps):
        if step.out in shares and len(at := readers.get(step.out, set())) == 1:
            (placement[i],) = at
    return split_steps(graph, placement, shares, host)


def shares_of(step: AnchorStep, config: PartConfig) -> list[Share]:
    """Return the rows or the channels of each part. Raises BadInput for a config that splits both."""
    if sum(degree > 1 for degree in config.degrees) > 1:
        raise BadInput(f"node {step.node!r}: split it along channels or along rows, not both")
    if len(config.degrees) > ROWS and config.degrees[ROWS] > 1:
        parts = len(config.devices)
        cuts = [cut(rows_of(step), parts, part) for part in range(parts)]
        return joined([Share(*rows, device, rows=True) for rows, device in zip(cuts, config.devices, strict=True)])
    return _channels_shared(step, config.devices)


def _channels_shared(step: AnchorStep, devices: Sequence[int]) -> list[Share]:
    """Share out channels as equally as whole groups of channels allow. Borders move to whole layout blocks where that
    moves each border by at most a quarter of a part. Every device gets a group if there are enough."""
    channels, unit, parts = channels_of(step), unit_of(step), len(devices)
    exact = [channels * i / parts for i in range(parts + 1)]
    for block in (*(unit * b for b in _BLOCKS), unit):
        borders = [round(border / block) * block for border in exact[:-1]] + [channels]
        away = max(abs(border - at) for border, at in zip(borders, exact, strict=True))
        if all(a < b for a, b in pairwise(borders)) and away <= channels / parts / 4:
            break
    shares = joined([Share(a, b, device) for (a, b), device in zip(pairwise(borders), devices, strict=True)])
    left = range(len(shares) - 1, -1, -1)
    ends = [min(max(s.last, unit * (i + 1)), channels - unit * left[i]) for i, s in enumerate(shares)]
    return [replace(s, first=a, last=b) for s, (a, b) in zip(shares, pairwise([0, *ends]), strict=True)]


def _most(shares: Sequence[Share]) -> int:
    """Return the device with the most channels, or rows."""
    devices = dict.fromkeys(share.device for share in shares)
    return max(devices, key=lambda d: sum(share.size for share in shares if share.device == d))


def whole_strategy(graph: FusedGraph, placement: Sequence[int]) -> Strategy:
    """Return a placement of a graph's steps (indices of devices) as a strategy in which no step is split."""
    network, _ = network_of(graph)
    return tuple(whole(o, d) for o, d in zip(network.operators, placement, strict=True))


def read_strategy_of(path: Path, graph: FusedGraph, devices: Sequence[Device]) -> Strategy:
    """Read a strategy for a graph from a file. Raises BadInput, in one line with the file and the step, for what cannot
    be used."""
    network, _ = network_of(graph)
    return read_strategy(path, network, able_topology(graph, network, devices, topology=_names_of(devices)))


def built_of(path: Path, graph: FusedGraph, devices: Sequence[Device], strategy: Strategy) -> Split:
    """Return `built` for a strategy from a file, on a GPU and the CPU. Raises BadInput, naming the file, for a strategy
    that cannot be built, and for one that does not fit into the GPU's memory."""
    split = _built(path, graph, strategy, CPU)
    gpu, needs = devices[GPU], memory_on(split.graph, split.placement, GPU)
    if gpu.memory_bytes is not None and needs > gpu.memory_bytes:
        has = f"has {gpu.memory_bytes / 2**20:.2f}: give the CPU more"
        raise BadInput(f"{path}: needs {needs / 2**20:.2f} MiB of {gpu.name}, which {has}")
    return split


def _built(path: Path, graph: FusedGraph, strategy: Strategy, host: int) -> Split:
    try:
        return built(graph, strategy, host)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def write_strategy_of(path: Path, graph: FusedGraph, devices: Sequence[Device], strategy: Strategy) -> None:
    """Write a file for `read_strategy_of`. Raises BadInput where it cannot be written."""
    network, _ = network_of(graph)
    write_strategy(path, network, _names_of(devices), strategy)


def part_tasks(path: Path, graph: FusedGraph, device: str) -> list[Task]:
    """Return the tasks to tune on a device for the parts that a file gives it. Raises BadInput as `read_strategy_of`
    does."""
    names = devices_in(path)
    if device not in names:
        raise BadInput(f"{path}: gives nothing to {device}: it has {', '.join(names) or 'no devices'}")
    network, _ = network_of(graph)
    split = _built(path, graph, read_strategy(path, network, _named(names)), names.index(device))
    placed = zip(split.graph.steps, split.placement, strict=True)
    here = [step for step, at in placed if step.out in split.whole and names[at] == device]
    return tasks_of(replace(split.graph, steps=tuple(here)))


def _names_of(devices: Sequence[Device]) -> Topology:
    return _named([device.name for device in devices])


def _named(names: Sequence[str]) -> Topology:
    """Return a topology of devices that have only names; saying where a step is takes no peaks."""
    specs = tuple(DeviceSpec(name, name, 1.0, 1.0, name) for name in names)
    links = tuple(Link(a, b, 1.0) for a in names for b in names if a != b)
    return Topology(",".join(names), specs, tuple(Memory(name) for name in names), links)
