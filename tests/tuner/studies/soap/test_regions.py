"""Splits compute the same: parts made by NumPy from the regions that they are said to need, joined, are the whole."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.networks.operators import Builder
from tuner.studies.soap import PartConfig, configs_of, random_strategy, regions_of
from tuner.studies.soap.configs import degrees_of, needs_of, part_counts
from tuner.studies.topology import topology_of

RNG = np.random.default_rng(0)


def sliced(region: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in region.tolist())


def convolved(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """Without padding, NCHW."""
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,kcij->nkhw", windows, weight)


def split_convolution(kernel: int, stride: int, pad: int, size: int, degrees: tuple[int, ...]) -> None:
    b = Builder(4)
    first = b.conv(b.image(1, size), 5, 1)
    second = b.operators[b.conv(first, 6, kernel, stride, pad)]
    x, weight = RNG.standard_normal((4, 5, size, size)), RNG.standard_normal((6, 5, kernel, kernel))
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    whole, joined = convolved(padded, weight, stride), np.full(second.shape, np.nan)
    regions = regions_of(second.shape, degrees)
    for region, need in zip(regions, needs_of(second, 0, regions, x.shape), strict=True):
        rows = region[2].tolist()
        held = np.zeros_like(padded)  # what was not sent is zero
        into = sliced(need + np.array([[0], [0], [pad], [pad]]))
        held[into] = x[sliced(need)]
        window = held[sliced(region[:1])][:, :, rows[0] * stride : (rows[1] - 1) * stride + kernel]
        joined[sliced(region)] = convolved(window, weight[sliced(region[1:2])], stride)
    assert np.array_equal(joined, whole) or np.allclose(joined, whole, atol=1e-12)
    assert not np.isnan(joined).any()


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "size"), [(1, 1, 0, 8), (3, 1, 1, 9), (5, 2, 2, 13), (3, 2, 0, 11)]
)
def test_rows_samples_and_channels_of_a_convolution(kernel: int, stride: int, pad: int, size: int) -> None:
    for degrees in itertools.product((1, 2, 4), (1, 3), (1, 2, 3), (1,)):
        split_convolution(kernel, stride, pad, size, degrees)


def test_a_halo_is_no_larger_than_it_has_to_be() -> None:
    b = Builder(1)
    second = b.operators[b.conv(b.conv(b.image(1, 8), 2, 1), 2, 3, 1, 1)]
    needs = needs_of(second, 0, regions_of(second.shape, (1, 1, 2, 1)), (1, 2, 8, 8))
    assert needs[:, 2].tolist() == [[0, 5], [3, 8]]


def test_gradients_of_a_split_matrix_multiplication_are_summed() -> None:
    """Each part of the channels has its own summand of the input's gradient: together they are the whole."""
    b = Builder(6)
    dense = b.operators[b.dense(b.dense(b.embed(10, 8), 12), 20)]
    x, weight, gradient = (RNG.standard_normal(shape) for shape in ((6, 12), (20, 12), (6, 20)))
    regions = regions_of(dense.shape, (2, 4))
    found, weights = np.zeros_like(x), np.zeros_like(weight)
    for region, need in zip(regions, needs_of(dense, 0, regions, x.shape), strict=True):
        samples, channels = sliced(region)
        found[sliced(need)] += gradient[samples, channels] @ weight[channels]
        weights[channels] += gradient[samples, channels].T @ x[sliced(need)]
    np.testing.assert_allclose(found, gradient @ weight)
    np.testing.assert_allclose(weights, gradient.T @ x)


def test_a_concatenation_needs_of_an_operand_what_falls_on_it() -> None:
    b = Builder(2)
    x = b.conv(b.image(1, 4), 4, 1)
    y = b.conv(x, 6, 1)
    joined = b.operators[b.concat([x, y])]
    regions = regions_of(joined.shape, (1, 5, 1, 1))
    parts = [needs_of(joined, k, regions, b.shape(u))[:, 1].tolist() for k, u in enumerate(joined.inputs)]
    assert parts[0] == [[0, 2], [2, 4], [4, 4], [4, 4], [4, 4]]
    assert parts[1] == [[0, 0], [0, 0], [0, 2], [2, 4], [4, 6]]


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5, 6)])
def test_parts_cover_the_output_once(shape: tuple[int, ...]) -> None:
    for parts in (1, 2, 4):
        for degrees in degrees_of(shape, "sp" if len(shape) == 2 else "spa-", parts):
            count = np.zeros(shape, int)
            for region in regions_of(shape, degrees):
                count[sliced(region)] += 1
            assert math.prod(degrees) == parts
            assert (count == 1).all()


def test_configs_are_those_that_devices_can_have() -> None:
    operator = NetworkOperator("c", "conv2d", (4, 2, 9, 9), "spa-", flop=1.0, weights=4.0)
    found = configs_of(operator, topology_of("p100:4"))
    assert len(set(found)) == len(found)
    assert PartConfig((1, 1, 1, 1), (3,)) in found
    assert PartConfig((2, 2, 1, 1), (0, 1, 2, 3)) in found
    assert not any(c.degrees[3] > 1 or c.degrees[1] > 2 for c in found)
    assert all(len(c.devices) == math.prod(c.degrees) == len(set(c.devices)) for c in found)
    soc = configs_of(operator, topology_of("jetson-nano"))
    assert soc == (PartConfig((1,) * 4, (0,)), PartConfig((1,) * 4, (1,)))  # no equal split between unequal devices
    drawn = random_strategy(Network("n", (operator,) * 50), topology_of("p100:4"), random.Random(0))
    assert set(drawn) <= set(found)
    assert len(set(drawn)) > 10
    assert part_counts(6) == [1, 2, 4, 6]
    assert Network("n", (operator,)).weights == 4
