"""Strategies that leave operators whole, or split them all alike. Start at `single`."""

from __future__ import annotations

from tuner.errors import BadInput
from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.soap import PartConfig, Strategy
from tuner.studies.topology import Topology


def whole(operator: NetworkOperator, device: int) -> PartConfig:
    """Not split, on one device."""
    return PartConfig((1,) * len(operator.shape), (device,))


def able(topology: Topology, operator: NetworkOperator) -> tuple[int, ...]:
    """The devices that compute an operator. Raises BadInput if none does."""
    found = topology.able(operator.kind)
    if not found:
        raise BadInput(f"{topology.name}: no device computes {operator.kind} ({operator.name!r})")
    return found


def whole_on(topology: Topology, operator: NetworkOperator, device: int) -> PartConfig:
    """Not split, on a device if that computes it, else on the fastest that does. Raises BadInput if none does."""
    found = able(topology, operator)
    return whole(operator, device if device in found else max(found, key=lambda d: topology.devices[d].flops))


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
    return tuple(whole_on(topology, operator, device) for operator in network.operators)


def workers(topology: Topology) -> tuple[int, ...]:
    """The devices that share work equally: those of the fastest one's kind."""
    return topology.of_kind(topology.devices[fastest(topology)].kind)


def split(topology: Topology, operator: NetworkOperator, axis: str) -> PartConfig:
    """Along its first dimension of an axis ("s", "p"), over as many as it has values there of the workers that compute
    it; not split where none of them does. Raises BadInput if no device does."""
    devices = tuple(d for d in workers(topology) if d in topology.able(operator.kind))
    if not devices:
        return whole_on(topology, operator, fastest(topology))
    dim = operator.axes.index(axis)
    count = min(len(devices), operator.shape[dim])
    degrees = tuple(count if i == dim else 1 for i in range(len(operator.shape)))
    return PartConfig(degrees, devices[:count])


def data_parallel(network: Network, topology: Topology) -> Strategy:
    """Every operator along the sample dimension over all workers (paper 002, section 8.2.1)."""
    return tuple(split(topology, operator, "s") for operator in network.operators)
