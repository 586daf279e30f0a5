"""Strategies that leave operators whole, or split them all alike. Start at `single`."""

from __future__ import annotations

from tuner.errors import BadInput
from tuner.placement.networks import Network, Operator
from tuner.placement.soap import Config, Strategy
from tuner.placement.topology import Topology


def whole(operator: Operator, device: int) -> Config:
    """Not split, on one device."""
    return Config((1,) * len(operator.shape), (device,))


def fastest(topology: Topology, kind: str = "") -> int:
    """The device with the most flop per second, of a kind if one is given. Raises BadInput if there is none."""
    found = topology.of_kind(kind) if kind else tuple(range(len(topology.devices)))
    if not found:
        raise BadInput(f"{topology.name}: no device of kind {kind!r}")
    return max(found, key=lambda d: topology.devices[d].flops)


def single(network: Network, topology: Topology, kind: str = "") -> Strategy:
    """All on one device (paper 004, section 4.2): the fastest of its kind; what it cannot compute falls back."""
    return fall_back(network, topology, fastest(topology, kind))


def fall_back(network: Network, topology: Topology, device: int | None = None) -> Strategy:
    """The two passes of paper 003, section 3.1.2: what the device (default: the fastest) can compute stays there, the
    rest goes to the fastest that can; copies follow from that. Raises BadInput if none can."""
    device = fastest(topology) if device is None else device
    found = []
    for operator in network.operators:
        able = topology.able(operator.kind)
        if not able:
            raise BadInput(f"{topology.name}: no device computes {operator.kind} ({operator.name!r})")
        best = device if device in able else max(able, key=lambda d: topology.devices[d].flops)
        found.append(whole(operator, best))
    return tuple(found)


def workers(topology: Topology) -> tuple[int, ...]:
    """The devices that share work equally: those of the fastest one's kind."""
    return topology.of_kind(topology.devices[fastest(topology)].kind)


def split(operator: Operator, axis: str, devices: tuple[int, ...]) -> Config:
    """Along its first dimension of an axis ("s", "p"), over as many of the devices as it has values there."""
    dim = operator.axes.index(axis)
    count = min(len(devices), operator.shape[dim])
    degrees = tuple(count if i == dim else 1 for i in range(len(operator.shape)))
    return Config(degrees, devices[:count])


def data_parallel(network: Network, topology: Topology) -> Strategy:
    """Every operator along the sample dimension over all workers (paper 002, section 8.2.1)."""
    found = []
    for operator in network.operators:
        able = tuple(d for d in workers(topology) if operator.kind not in topology.devices[d].lacks)
        found.append(split(operator, "s", able) if able else whole(operator, topology.able(operator.kind)[0]))
    return tuple(found)
