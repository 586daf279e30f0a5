"""Partitions the graph by METIS (extra `metis`), where Mirhoseini et al. ("Device Placement Optimization with
Reinforcement Learning", section 4.2) used Scotch. Start at `partition`.
"""

from __future__ import annotations

import numpy as np

from tuner.errors import BadInput
from tuner.studies.baselines.whole import fastest, whole, whole_on, workers
from tuner.studies.networks import Network
from tuner.studies.simulator import CostModel, Roofline
from tuner.studies.simulator.blocks import Blocks
from tuner.studies.soap import Strategy
from tuner.studies.topology import Topology

_SHARES = 1_000_000  # METIS takes whole numbers: seconds and bytes become shares of their sums


def partition(network: Network, topology: Topology, cost: CostModel | None = None, every: bool = False) -> Strategy:
    """Cut the network into parts of about equal work with few bytes between them, one part a worker; no operator is
    split.

    With `every`, all devices get a part as large as their speed, which is "Scotch" in Mirhoseini et al.; else only the
    workers do, which is their "MinCut". An operator that the device of its part cannot compute goes to the fastest
    device that can.

    Raises BadInput where pymetis is not installed, and where no device computes an operator.
    """
    try:
        import pymetis
    except ImportError as error:
        raise BadInput("METIS is not here: pip install 'edgetune[metis]'") from error
    devices = tuple(range(len(topology.devices))) if every else workers(topology)
    if len(devices) == 1:
        return tuple(whole_on(topology, o, devices[0]) for o in network.operators)
    weights = _work(network, topology, cost)
    lists, bytes_between = _neighbours(network)
    flops = [topology.devices[d].flops for d in devices]
    adjacency = pymetis.CSRAdjacency(
        adj_starts=np.cumsum([0, *map(len, lists)]).tolist(), adjacent=[v for around in lists for v in around]
    )
    _, parts = pymetis.part_graph(
        len(devices),
        adjacency,
        vweights=weights,
        eweights=[size for sizes in bytes_between for size in sizes],
        tpwgts=[f / sum(flops) for f in flops],
    )
    return tuple(whole_on(topology, o, devices[part]) for o, part in zip(network.operators, parts, strict=True))


def _work(network: Network, topology: Topology, cost: CostModel | None) -> list[int]:
    """Return each operator's seconds on the fastest device, as whole shares of the sum."""
    blocks = Blocks(network, topology, cost or Roofline(), training=True)
    best, seconds = fastest(topology), []
    for i, operator in enumerate(network.operators):
        config = whole(operator, best)
        seconds.append(float(blocks.operator(i, blocks.config_id(config)).exe.sum()))
    return [max(round(s / sum(seconds) * _SHARES), 1) for s in seconds]


def _neighbours(network: Network) -> tuple[list[list[int]], list[list[int]]]:
    """Return the neighbours of every operator, in both directions and each once, and the bytes between them as whole
    shares."""
    between: list[dict[int, float]] = [{} for _ in network.operators]
    for v, operator in enumerate(network.operators):
        for u in operator.inputs:
            size = float(network.operators[u].bytes)
            between[u][v] = between[v][u] = between[u].get(v, 0.0) + size
    total = sum(size for around in between for size in around.values()) or 1.0
    sizes = [[max(round(size / total * _SHARES), 1) for size in around.values()] for around in between]
    return [list(around) for around in between], sizes
