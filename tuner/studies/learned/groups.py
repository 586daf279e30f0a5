"""Forms colocation groups, and what the policy sees of them (Mirhoseini et al., "Device Placement Optimization with
Reinforcement Learning", sections 3.2 and 3.3). Start at `groups_of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tuner.studies.networks import Network

_DIMENSIONS = 4  # of an output shape, padded with zeros


@dataclass(frozen=True)
class Groups:
    """Groups of operators that share a device.

    - `members` holds the operators of each group; the groups are sorted by their first operator.
    - `kinds` holds the type of each group, as a number below `types`.
    - `features` has a row for each group: its output shape, then which groups it reads and which read it.
    """

    members: tuple[tuple[int, ...], ...]
    kinds: np.ndarray
    types: int
    features: np.ndarray


def groups_of(network: Network) -> Groups:
    """Return the groups of a network, formed in two stages.

    First, operators that are grouped by hand are together, as the paper does for its networks: a step of an LSTM layer,
    a branch of an Inception module. Then a group that only one other group reads joins that group, again and again. It
    does so only if it has no weights of its own, which stands for the paper's condition on the kind of work.

    A group's type is that of its heaviest operator. Steps of a layer have the layer's own type, as their names in
    TensorFlow would say.
    """
    named: dict[str, list[int]] = {}
    for i, name in enumerate(network.branches):
        named.setdefault(name, []).append(i)
    members = _merged(network, [tuple(m) for m in named.values()])
    group = {i: g for g, of in enumerate(members) for i in of}
    names = []
    features = np.zeros((len(members), _DIMENSIONS + 2 * len(members)), np.float32)
    for g, of in enumerate(members):
        heaviest = network.operators[max(of, key=lambda i: network.operators[i].flop)]
        names.append(heaviest.layer or heaviest.kind)
        shape = network.operators[of[-1]].shape[:_DIMENSIONS]
        features[g, : len(shape)] = [math.log1p(size) / 10 for size in shape]
        for i in of:
            for u in network.operators[i].inputs:
                if group[u] != g:
                    features[g, _DIMENSIONS + group[u]] = 1
                    features[group[u], _DIMENSIONS + len(members) + g] = 1
    kinds = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return Groups(members, np.array([kinds[n] for n in names]), len(kinds), features)


def _merged(network: Network, members: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    while True:
        group = {i: g for g, of in enumerate(members) for i in of}
        readers: list[set[int]] = [set() for _ in members]
        for v, operator in enumerate(network.operators):
            for u in operator.inputs:
                if group[u] != group[v]:
                    readers[group[u]].add(group[v])
        light = [all(not network.operators[i].weights for i in of) for of in members]
        joins = next((g for g, r in enumerate(readers) if len(r) == 1 and light[g]), None)
        if joins is None:
            return tuple(sorted(members))
        into = next(iter(readers[joins]))
        members[into] = tuple(sorted(members[into] + members[joins]))
        del members[joins]
