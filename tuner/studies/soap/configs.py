"""Parallelisation configs of one operator (paper 002, section 4): degrees of its dimensions, a device for each part.
Start at `PartConfig`; `configs_of` lists those that a search proposes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.topology import Topology

Interval = tuple[int, int]
Region = tuple[Interval, ...]


class PartConfig(NamedTuple):
    """`degrees`: into how many parts each dimension of the output is cut; `devices`: the index of a device for each of
    the parts, of which the last dimension's follow each other."""

    degrees: tuple[int, ...]
    devices: tuple[int, ...]


Strategy = tuple[PartConfig, ...]  # for each operator of a network
Proposals = Callable[
    [NetworkOperator, Topology], tuple[PartConfig, ...]
]  # the configs that a search may give an operator


def cut(extent: int, degree: int, part: int) -> Interval:
    """Where a part of a dimension begins and ends: sizes differ by one at most (the paper has equal ones only)."""
    return part * extent // degree, (part + 1) * extent // degree


def region_of(shape: tuple[int, ...], degrees: tuple[int, ...], part: int) -> Region:
    """What part of the output one part is."""
    found: list[Interval] = []
    for extent, degree in zip(reversed(shape), reversed(degrees), strict=True):
        part, i = divmod(part, degree)
        found.append(cut(extent, degree, i))
    return tuple(reversed(found))


@lru_cache(maxsize=8192)
def regions_of(shape: tuple[int, ...], degrees: tuple[int, ...]) -> np.ndarray:
    """Of all parts: (parts, dimensions, 2). It is kept: do not change it."""
    parts = math.prod(degrees)
    return np.array([region_of(shape, degrees, part) for part in range(parts)], np.int64).reshape(parts, len(shape), 2)


def needs_of(operator: NetworkOperator, operand: int, regions: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What of an operand (of that shape) each of the regions of an operator's output needs, halo included: (parts,
    dimensions of the operand, 2). An empty interval begins where it ends."""
    found = np.empty((len(regions), len(shape), 2), np.int64)
    for dim, (read, size) in enumerate(zip(operator.reads[operand], shape, strict=True)):
        if read.dim < 0:
            found[:, dim] = 0, size
            continue
        low, high = regions[:, read.dim, 0], regions[:, read.dim, 1]
        first = np.clip(low * read.stride + read.shift, 0, size)
        last = np.clip((high - 1) * read.stride + read.shift + read.extent, 0, size)
        found[:, dim, 0], found[:, dim, 1] = first, np.maximum(first, last)
    return found


@lru_cache(maxsize=4096)
def degrees_of(shape: tuple[int, ...], axes: str, parts: int) -> tuple[tuple[int, ...], ...]:
    """All ways of cutting an output into so many parts, along the dimensions that can be cut."""
    most = [extent if axis != "-" else 1 for extent, axis in zip(shape, axes, strict=True)]
    return tuple(_factors(parts, tuple(most)))


def _factors(parts: int, most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not most:
        if parts == 1:
            yield ()
        return
    for degree in range(1, min(parts, most[0]) + 1):
        if parts % degree == 0:
            for rest in _factors(parts // degree, most[1:]):
                yield (degree, *rest)


def part_counts(devices: int) -> list[int]:
    """Into how many parts an operator is cut for so many devices: powers of two, and as many as there are."""
    return sorted({1 << i for i in range(devices.bit_length()) if 1 << i <= devices} | {devices})


def configs_of(operator: NetworkOperator, topology: Topology) -> tuple[PartConfig, ...]:
    """The configs that a search proposes: the parts on neighbouring devices, as FlexFlow's own proposals have them; the
    devices those that can compute the operator, a split over devices of one kind."""
    able = topology.able(operator.kind)
    return _configs(operator.shape, operator.axes, able, tuple(topology.devices[i].kind for i in able))


@lru_cache(maxsize=1024)
def _configs(
    shape: tuple[int, ...], axes: str, able: tuple[int, ...], kinds: tuple[str, ...]
) -> tuple[PartConfig, ...]:
    found = []
    for kind in dict.fromkeys(kinds):
        pool = [device for device, its in zip(able, kinds, strict=True) if its == kind]
        for parts in part_counts(len(pool)):
            for degrees, first in itertools.product(degrees_of(shape, axes, parts), range(len(pool) - parts + 1)):
                found.append(PartConfig(degrees, tuple(pool[first : first + parts])))
    return tuple(found)


def random_config(
    operator: NetworkOperator, topology: Topology, rng: random.Random, configs: Proposals = configs_of
) -> PartConfig:
    """Any of `configs`, all as likely as the others: so proposals are symmetric (paper 002, section 6.2)."""
    return rng.choice(configs(operator, topology))


def random_strategy(
    network: Network, topology: Topology, rng: random.Random, configs: Proposals = configs_of
) -> Strategy:
    """A `random_config` for every operator: one that chains may start from (paper 002, section 6.2)."""
    return tuple(random_config(operator, topology, rng, configs) for operator in network.operators)
