"""Placements that experts choose, as two papers describe them. Start at `expert` (Jia, Zaharia and Aiken, "Beyond Data
and Model Parallelism for Deep Neural Networks") and `expert_placement` (Mirhoseini et al., "Device Placement
Optimization with Reinforcement Learning").
"""

from __future__ import annotations

from tuner.studies.baselines.whole import able, split, whole_on, workers
from tuner.studies.networks import Network
from tuner.studies.soap import PartConfig, Strategy
from tuner.studies.topology import Topology

_NODE = 4  # GPUs to a node, in both papers


def is_recurrent(network: Network) -> bool:
    """Tell whether any operator is an LSTM."""
    return any(o.kind == "lstm" for o in network.operators)


def expert(network: Network, topology: Topology) -> Strategy:
    """Return the expert strategy of Jia et al., section 8.2.1.

    Image networks follow Krizhevsky (2014): they are data parallel, but dense layers are split along their parameters.
    Recurrent networks follow Wu et al. (2016): every node has the whole network for its share of the samples, and
    within a node operators of the same depth are on the same GPU. An operator that such a GPU cannot compute is not
    split, and goes to the fastest device that can compute it. Raises BadInput if none can.
    """
    devices = workers(topology)
    if not is_recurrent(network):
        return tuple(split(topology, o, "p" if o.kind == "matmul" else "s") for o in network.operators)
    nodes = max(len(devices) // _NODE, 1)
    size = len(devices) // nodes
    depths = max(network.depths) + 1
    found = []
    for operator, depth in zip(network.operators, network.depths, strict=True):
        place = depth * size // depths
        copies = tuple(devices[n * size + place] for n in range(nodes))
        if set(copies) <= set(able(topology, operator)):
            found.append(PartConfig((nodes, *[1] * (len(operator.shape) - 1)), copies))
        else:
            found.append(whole_on(topology, operator, devices[place]))
    return tuple(found)


def expert_placement(network: Network, topology: Topology) -> Strategy:
    """Return the expert placement of Mirhoseini et al., section 4.2, which splits no operator.

    Recurrent networks have a device for every layer: the embedding is with the first, attention and softmax are with
    the last layer. Image networks are cut into parts with equally many layers. An operator that its device cannot
    compute goes to the fastest device that can. Raises BadInput if none can.
    """
    devices = workers(topology)
    count = len(network.operators)
    depths = max(network.depths) + 1
    found = []
    for i, (operator, depth) in enumerate(zip(network.operators, network.depths, strict=True)):
        place = depth * len(devices) // depths if is_recurrent(network) else i * len(devices) // count
        if is_recurrent(network) and depths < len(devices):
            place = depth
        found.append(whole_on(topology, operator, devices[place]))
    return tuple(found)
