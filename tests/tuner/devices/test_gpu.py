"""What an OpenCL device's limits become for templates, and devices that are here."""

from __future__ import annotations

import pytest
from tvm.target import Target

from templates.gpu.limits import gpu_limits
from tuner.devices import Device, cuda, list_devices, open_device, opencl, timed_call
from tuner.errors import BadInput

FOUND = [device for device in list_devices() if not device.is_host]
needs_opencl = pytest.mark.skipif(not FOUND, reason="no OpenCL driver or CUDA device is here")
each = pytest.mark.parametrize("device", FOUND, ids=lambda d: d.key.model)


@needs_opencl
@each
def test_limits_are_in_the_target_and_in_the_key(device: Device) -> None:
    limits = gpu_limits(Target(str(device.target)))
    assert limits is not None
    assert limits.kind == device.key.kind == device.name.partition(":")[0]
    assert limits.family == device.key.family
    assert limits.max_threads == device.key.attrs["max_threads"] >= 1
    assert device.key.attrs["compute_units"] >= 1
    assert device.cache_bytes > 0
    assert not device.is_host
    assert device.tvm_device().exist
    assert open_device(device.name).key == device.key


def test_a_number_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"no device opencl:99"):
        open_device("opencl:99")
    with pytest.raises(BadInput, match=r"cuda:99.*not found"):
        open_device("cuda:99")


@needs_opencl
def test_threads_are_for_the_cpu() -> None:
    with pytest.raises(BadInput, match=r"opencl:0.*cpu"):
        open_device("opencl:0", 1)


def test_boards_come_later() -> None:
    with pytest.raises(BadInput, match="no board is named 'kitchen'"):
        open_device("board:kitchen")


@needs_opencl
def test_a_call_is_timed_by_the_device() -> None:
    import numpy as np
    import tvm

    from tuner.measure.codegen.toolchain import preflight_func, preflight_result

    device = FOUND[0]
    place = device.tvm_device()
    function = tvm.tirx.build(preflight_func(4, device.target), target=device.target)["main"]
    data = tvm.runtime.tensor(np.zeros((4, 64), np.float32), place)
    out = tvm.runtime.empty((4, 64), "float32", place)
    assert 0 < timed_call(place, function, data, out) < 60
    np.testing.assert_array_equal(out.numpy(), preflight_result(np.zeros((4, 64))))


def test_cuda_devices_are_found_without_the_opencl_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> list[Device]:
        raise BadInput("OpenCL needs a C++ compiler once")

    monkeypatch.setattr("tuner.devices.opencl.kind.devices", unavailable)
    assert cuda.KIND.list_here() == [device for device in FOUND if device.key.kind == "cuda"]
    with pytest.raises(BadInput, match="C\\+\\+ compiler"):
        opencl.KIND.list_here()
