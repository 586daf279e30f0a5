"""Pieces of networks timed on the host and on real drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from templates.template import PLAIN, Layout
from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device
from tuner.graph import DevicePlan, lower_alone, lower_transform
from tuner.placement.kernel_timing import computes, fitted_link, time_copy, time_module


@pytest.fixture(scope="module", params=["cpu", "pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device("cpu" if request.param == "cpu" else f"opencl:{device_number(request.param)}")


@pytest.mark.sampled(3)
def test_a_larger_step_takes_longer_in_any_layout(tmp_path: Path, device: Device) -> None:
    seconds = {}
    for size in (8, 768):
        net = Net()
        graph = net.graph(tmp_path, net.op("MaxPool", net.input(1, 16, size, size), kernel_shape=[3, 3]))
        for block in (0, 16):
            alone = lower_alone(graph, graph.steps[0], DevicePlan(device.target, {}), block)
            times = time_module(alone.module, device, runs=31)  # a busy machine delays most of them
            assert len(times) == 31
            assert min(times) > 0
            seconds[size, block] = min(times)
    assert seconds[768, 0] > seconds[8, 0]
    assert seconds[768, 16] > seconds[8, 16]


def test_transforms_take_time_unless_memory_stays_the_same(device: Device) -> None:
    module = lower_transform((1, 32, 28, 28), "float32", PLAIN, to=Layout(16), target=device.target)
    assert computes(module)
    assert min(time_module(module, device, runs=3)) > 0
    assert not computes(lower_transform((1, 32, 1, 1), "float32", PLAIN, to=Layout(16), target=device.target))


def test_copies_to_and_from_a_device(device: Device) -> None:
    host = open_device("cpu")
    for source, target in ((host, device), (device, host)):
        small, large = (min(time_copy(source, target, n)) for n in (1 << 10, 1 << 24))
        assert 0 < small < large


@pytest.mark.parametrize(("latency", "rate"), [(1e-5, 1e-10), (0.0, 2e-10), (3e-6, 0.0)])
def test_a_link_is_fitted(latency: float, rate: float) -> None:
    sizes = [4096, 65536, 1 << 20, 1 << 23]
    assert fitted_link(sizes, [latency + rate * n for n in sizes]) == pytest.approx((latency, rate), abs=1e-15)


def test_a_fit_is_never_negative() -> None:
    assert min(fitted_link([1000, 100_000], [1e-6, 5e-7])) >= 0
    assert min(fitted_link([1000, 100_000], [1e-7, 5e-5])) >= 0
