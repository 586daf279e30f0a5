"""Crossings between the host and real drivers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tuner.devices import Device, open_device
from tuner.placement.crossing import Crossing, time_crossing
from tuner.placement.pieces import time_copy


@pytest.fixture(scope="module", params=["pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(f"opencl:{device_number(request.param)}")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_trip_computes_on_both_devices(device: Device, threads: int) -> None:
    host = open_device("cpu", min(threads, open_device("cpu").threads))
    for ends in ((host, device), (device, host)):
        crossing = Crossing(*ends, 1000)
        for _ in range(3):
            crossing._trip()
        np.testing.assert_array_equal(crossing._tensors[0][0].numpy(), np.full(250, 7.0))  # 1, and 2 a trip


def test_a_crossing_takes_no_less_than_a_copy(device: Device) -> None:
    host = open_device("cpu")
    for ends in ((host, device), (device, host)):
        small, large = (time_crossing(*ends, count, runs=5) for count in (1, 1 << 22))
        assert len(small) == 5
        assert min(small) > 0
        assert 0.1 * min(time_copy(*ends, 1 << 22)) < min(large)
