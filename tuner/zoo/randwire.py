"""Builds RandWire-WS (Xie et al., 2019, table 1): blocks of 32 nodes wired at random (Watts-Strogatz, K 4, P 0.75),
224x224 input. There are small (C 78, about 5.6 M parameters and 0.58 G multiply-adds) and regular (C 109, 31.9 M, 4.0
G). The seed of the weights also decides the wiring.
"""

from __future__ import annotations

import numpy as np

from tuner.zoo.builder import GraphBuilder

NODES, NEIGHBOURS, REWIRED = 32, 4, 0.75


def small(b: GraphBuilder, batch: int) -> str:
    """Build RandWire-WS with C 78 and return the name of its output (batch, 1000)."""
    x = b.conv(b.input("data", (batch, 3, 224, 224)), "conv1", 39, 3, 2, 1)
    x = b.conv(b.relu(b.batch_norm(x, "conv1.bn")), "conv2", 78, 3, 2, 1)
    x = b.batch_norm(x, "conv2.bn")
    return _build(b, x, (78, 156, 312), (NODES,) * 3)


def regular(b: GraphBuilder, batch: int) -> str:
    """Build RandWire-WS with C 109 and return the name of its output (batch, 1000)."""
    x = b.conv(b.input("data", (batch, 3, 224, 224)), "conv1", 54, 3, 2, 1)
    x = b.batch_norm(x, "conv1.bn")
    return _build(b, x, (109, 218, 436, 872), (NODES // 2, *(NODES,) * 3))


def _build(b: GraphBuilder, x: str, widths: tuple[int, ...], nodes: tuple[int, ...]) -> str:
    for i, (width, count) in enumerate(zip(widths, nodes, strict=True)):
        x = _block(b, x, f"block{i}", width=width, wires=wiring(count, b.rng))
    x = b.batch_norm(b.conv(b.relu(x), "head", 1280, 1), "head.bn")
    return b.dense(b.flatten(b.global_average_pool(b.relu(x))), "fc", 1000)


def wiring(count: int, rng: np.random.Generator) -> list[list[int]]:
    """Return, for every node, the earlier nodes that it reads.

    The graph begins as a ring in which every node is connected to its neighbours on both sides. Each edge is then
    rewired with a probability. An edge leads from the lower number to the higher.
    """
    known: list[set[int]] = [set() for _ in range(count)]
    for distance in range(1, NEIGHBOURS // 2 + 1):
        for node in range(count):
            _link(known, node, (node + distance) % count)
    for distance in range(1, NEIGHBOURS // 2 + 1):
        for node in range(count):
            other = (node + distance) % count
            free = [i for i in range(count) if i != node and i not in known[node]]
            if rng.random() < REWIRED and free and other in known[node]:
                known[node].discard(other)
                known[other].discard(node)
                _link(known, node, int(rng.choice(free)))
    return [sorted(i for i in known[node] if i < node) for node in range(count)]


def _link(known: list[set[int]], one: int, other: int) -> None:
    known[one].add(other)
    known[other].add(one)


def _block(b: GraphBuilder, x: str, name: str, *, width: int, wires: list[list[int]]) -> str:
    """Add a block. Nodes without a predecessor read the block's input and halve it; those without a successor are
    averaged."""
    values: list[str] = []
    for i, reads in enumerate(wires):
        value = _weighted(b, f"{name}.{i}", [values[r] for r in reads]) if reads else x
        value = b.relu(value)
        inner = b.channels[value]
        value = b.conv(value, f"{name}.{i}.depthwise", inner, 3, 1 if reads else 2, 1, groups=inner)
        value = b.conv(value, f"{name}.{i}.pointwise", width, 1)
        values.append(b.batch_norm(value, f"{name}.{i}.bn"))
    read = {r for reads in wires for r in reads}
    ends = [value for i, value in enumerate(values) if i not in read]
    total = ends[0]
    for value in ends[1:]:
        total = b.add(total, value)
    return b.scale(total, f"{name}.share", 1 / len(ends))


def _weighted(b: GraphBuilder, name: str, values: list[str]) -> str:
    """Return a sum with weights between 0 and 1 (in trained networks, the sigmoid of what was learnt)."""
    shares = b.rng.uniform(0.3, 0.7, len(values)) * (2 / len(values)) ** 0.5
    parts = [b.scale(v, f"{name}.share{i}", float(s)) for i, (v, s) in enumerate(zip(values, shares, strict=True))]
    total = parts[0]
    for part in parts[1:]:
        total = b.add(total, part)
    return total
