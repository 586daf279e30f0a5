"""Strategies that leave operators whole, or split all of them alike. Start at `single`."""

from __future__ import annotations

from tuner.errors import BadInput
from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.soap import PartConfig, Strategy
from tuner.studies.topology import Topology


def whole(operator: NetworkOperator, device: int) -> PartConfig:
    """Return the config that leaves an operator whole on one device."""
    return PartConfig((1,) * len(operator.shape), (device,))


def able(topology: Topology, operator: NetworkOperator) -> tuple[int, ...]:
    """Return the devices that compute an operator. Raises BadInput if none does."""
    found = topology.able(operator.kind)
    if not found:
        raise BadInput(f"{topology.name}: no device computes {operator.kind} ({operator.name!r})")
    return found


def whole_on(topology: Topology, operator: NetworkOperator, device: int) -> PartConfig:
    """Return the whole operator on `device` if that computes it, else on the fastest device that does. Raises BadInput
    if none does."""
    found = able(topology, operator)
    return whole(operator, device if device in found else max(found, key=lambda d: topology.devices[d].flops))


def fastest(topology: Topology, kind: str = "") -> int:
    """Return the device with the most flop per second, among those of a kind if one is given. Raises BadInput if there
    is none."""
    found = topology.of_kind(kind) if kind else tuple(range(len(topology.devices)))
    if not found:
        raise BadInput(f"{topology.name}: no device of kind {kind!r}")
    return max(found, key=lambda d: topology.devices[d].flops)


def single(network: Network, topology: Topology, kind: str = "") -> Strategy:
    """Place the whole network on one device, the fastest of its kind; operators that it cannot compute fall back.

    The source is Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", section 4.2.
    """
    return fall_back(network, topology, fastest(topology, kind))


def fall_back(network: Network, topology: Topology, device: int | None = None) -> Strategy:
    """Leave on the device (default: the fastest) what it can compute, and move the rest to the fastest device that can.

    These are the two passes of Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated
    GPUs", section 3.1.2; the second pass inserts copies, which follow from the placement here. Raises BadInput if no
    device can compute an operator.
    """
    device = fastest(topology) if device is None else device
    return tuple(whole_on(topology, operator, device) for operator in network.operators)


def workers(topology: Topology) -> tuple[int, ...]:
    """Return the devices that share work equally: those of the fastest device's kind."""
    return topology.of_kind(topology.devices[fastest(topology)].kind)


def split(topology: Topology, operator: NetworkOperator, axis: str) -> PartConfig:
    """Split an operator along its first dimension of an axis ("s" or "p") over the workers that compute it.

    It gets at most as many parts as it has values along that dimension. It is not split where no worker computes it.
    Raises BadInput if no device does.
    """
    devices = tuple(d for d in workers(topology) if d in topology.able(operator.kind))
    if not devices:
        return whole_on(topology, operator, fastest(topology))
    dim = operator.axes.index(axis)
    count = min(len(devices), operator.shape[dim])
    degrees = tuple(count if i == dim else 1 for i in range(len(operator.shape)))
    return PartConfig(degrees, devices[:count])


def data_parallel(network: Network, topology: Topology) -> Strategy:
    """Split every operator along the sample dimension over all workers (Jia, Zaharia and Aiken, "Beyond Data and Model
    Parallelism for Deep Neural Networks", section 8.2.1)."""
    return tuple(split(topology, operator, "s") for operator in network.operators)
