"""A parallelisation config of one operator says how its dimensions are split and which device computes each part. Start
at `PartConfig`; `configs_of` lists the configs that a search proposes. The source is Jia, Zaharia and Aiken, "Beyond
Data and Model Parallelism for Deep Neural Networks", section 4.
"""

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
    """A config that splits an operator's output into parts.

    `degrees` holds the number of parts along each dimension of the output. `devices` holds the index of a device for
    each part; parts are numbered so that neighbours along the last dimension follow each other.
    """

    degrees: tuple[int, ...]
    devices: tuple[int, ...]


Strategy = tuple[PartConfig, ...]  # for each operator of a network
Proposals = Callable[
    [NetworkOperator, Topology], tuple[PartConfig, ...]
]  # the configs that a search may give an operator


def cut(extent: int, degree: int, part: int) -> Interval:
    """Return where a part of a dimension begins and ends. Sizes differ by one at most (the paper has only equal
    ones)."""
    return part * extent // degree, (part + 1) * extent // degree


def region_of(shape: tuple[int, ...], degrees: tuple[int, ...], part: int) -> Region:
    """Return the region of the output that one part covers."""
    found: list[Interval] = []
    for extent, degree in zip(reversed(shape), reversed(degrees), strict=True):
        part, i = divmod(part, degree)
        found.append(cut(extent, degree, i))
    return tuple(reversed(found))


@lru_cache(maxsize=8192)
def regions_of(shape: tuple[int, ...], degrees: tuple[int, ...]) -> np.ndarray:
    """Return the regions of all parts, as (parts, dimensions, 2). The array is cached: do not change it."""
    parts = math.prod(degrees)
    return np.array([region_of(shape, degrees, part) for part in range(parts)], np.int64).reshape(parts, len(shape), 2)


def needs_of(operator: NetworkOperator, operand: int, regions: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return what each region of an operator's output needs of an operand of that shape, halo included.

    The result is (parts, dimensions of the operand, 2). An empty interval ends where it begins.
    """
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
    """Return all ways to cut an output into `parts` parts, along the dimensions that can be cut."""
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
    """Return into how many parts an operator may be cut for `devices` devices: powers of two, and the number of
    devices."""
    return sorted({1 << i for i in range(devices.bit_length()) if 1 << i <= devices} | {devices})


def configs_of(operator: NetworkOperator, topology: Topology) -> tuple[PartConfig, ...]:
    """Return the configs that a search proposes for an operator, with its parts on neighbouring devices of one kind,
    which can compute it. FlexFlow's own proposals also use neighbouring devices."""
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
    """Draw one of `configs`, all equally likely, so that proposals are symmetric (Jia et al., section 6.2)."""
    return rng.choice(configs(operator, topology))


def random_strategy(
    network: Network, topology: Topology, rng: random.Random, configs: Proposals = configs_of
) -> Strategy:
    """Draw a `random_config` for every operator: a strategy that chains may start from (Jia et al., section 6.2)."""
    return tuple(random_config(operator, topology, rng, configs) for operator in network.operators)
