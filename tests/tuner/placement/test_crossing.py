"""Crossings between the host and real drivers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tuner.devices import Device, open_device
from tuner.placement.kernel_timing import time_copy
from tuner.placement.transfer_timing import _KERNELS, _TRIPS, Crossing, Crossings


@pytest.fixture(scope="module", params=["pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(f"opencl:{device_number(request.param)}")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_computes_on_both_devices(device: Device, threads: int) -> None:
    host = open_device("cpu", min(threads, open_device("cpu").threads))
    for ends in ((host, device), (device, host)):
        crossing = Crossing(*ends, 1000)
        values = np.linspace(1, 2, 250, dtype=np.float32)
        crossing._tensors[0][0].copyfrom(values)
        crossing._run()
        one, other = crossing._tensors
        assert crossing._last == [_TRIPS * (_KERNELS + 1)] * 2
        for tensor in (*one[: crossing._last[0] + 1], *other[1 : crossing._last[1] + 1]):
            np.testing.assert_allclose(tensor.numpy(), values, rtol=1e-3)


@pytest.mark.sampled(2)
def test_a_crossing_takes_no_less_than_a_copy(device: Device) -> None:
    host = open_device("cpu")
    for ends in ((host, device), (device, host)):
        times = Crossings(*ends, (1, 1 << 22)).seconds(rounds=2, runs=5)
        small, large = times[1], times[1 << 22]
        assert len(small) == len(large) == 10
        assert min(small) > 0
        assert 0.1 * min(time_copy(*ends, 1 << 22)) < min(large)
