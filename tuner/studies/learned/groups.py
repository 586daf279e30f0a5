"""Colocation groups, and what the policy sees of them (paper 004, sections 3.2 and 3.3). Start at `groups_of`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tuner.studies.networks import Network

_DIMENSIONS = 4  # of an output shape, padded with zeros


@dataclass(frozen=True)
class Groups:
    """`members`: the operators of each group, in order of their first; `kinds`: the type of each group, as a number
    below `types`; `features`: (groups, dimensions and neighbours), output shapes and who reads whom."""

    members: tuple[tuple[int, ...], ...]
    kinds: np.ndarray
    types: int
    features: np.ndarray


def groups_of(network: Network) -> Groups:
    """What belongs together by hand (a step of an LSTM layer, a branch of an Inception module), as the paper has it for
    its networks; then, again and again, a group that only one other reads joins it where both are the same by their
    kind of work: here, where it has no weights of its own.

    A group's type is that of its heaviest operator; steps of a layer have the layer's own, as TensorFlow's names would.
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
