"""Drivers and devices: what is found, in which order, and what is said where something is not there."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict

import numpy as np
import pytest

from tests.tuner.devices.opencl.support import Child, add_one, device, error_of, tensor
from tuner.devices import opencl


def test_a_device_tells_its_limits(child):
    info = child(opencl.devices)[0]
    assert info.index == 0
    assert info.name
    assert info.platform
    assert info.driver_version
    assert info.version.startswith("OpenCL")
    assert info.type in ("gpu", "cpu", "accelerator", "other")
    assert info.compute_units >= 1
    assert 1 <= max(info.max_work_item_sizes) <= info.max_work_group_size
    assert len(info.max_work_item_sizes) == 3
    assert info.local_memory_bytes >= 16 << 10
    assert 0 < info.max_alloc_bytes <= info.global_memory_bytes
    assert info.local_memory_type in ("local", "global")
    assert info.fp64 == ("cl_khr_fp64" in info.extensions)
    assert info.fp16 == ("cl_khr_fp16" in info.extensions)
    assert bool(info.subgroup_sizes) == ("cl_intel_required_subgroup_size" in info.extensions)
    assert all(8 % size == 0 or size % 8 == 0 for size in info.subgroup_sizes)
    assert info.library.startswith("/")


def _with_host_memory() -> list[tuple[str, bool]]:
    return [(info.type, opencl.has_host_memory(info.index)) for info in opencl.devices()]


def test_cpus_have_the_hosts_memory(every_driver):
    found = every_driver(_with_host_memory)
    assert all(has for type, has in found if type == "cpu")
    assert all(isinstance(has, bool) for _, has in found)


def _as_tvm_sees_it() -> dict[str, object]:
    d = device()
    return {
        "exist": d.exist,
        "name": d.device_name,
        "max_work_group_size": d.max_threads_per_block,
        "local_memory_bytes": d.max_shared_memory_per_block,
        "compute_units": d.multi_processor_count,
        "driver_version": d.driver_version,
        "global_memory_bytes": d.total_global_memory,
        "max_work_item_sizes": tuple(d.max_thread_dimensions),
        "second": device(99).exist,
        "warp": d.warp_size,
    }


def test_tvm_sees_the_same_device(child):
    info, seen = asdict(child(opencl.devices)[0]), child(_as_tvm_sees_it)
    assert seen.pop("exist")
    assert not seen.pop("second")
    assert seen.pop("warp") == 1
    assert seen == {key: info[key] for key in seen}


def test_every_device_of_every_driver_once_gpus_first(every_driver):
    found, drivers = every_driver(opencl.devices), every_driver(opencl.drivers)
    assert [info.index for info in found] == list(range(len(found)))
    assert [info.type == "gpu" for info in found] == sorted((info.type == "gpu" for info in found), reverse=True)
    assert sorted(index for driver in drivers for index in driver.devices) == list(range(len(found)))
    for driver in drivers:
        assert bool(driver.devices) != bool(driver.problem)
        assert all(found[index].library == driver.path for index in driver.devices)


def test_a_driver_reached_twice_is_listed_once(child, tmp_path):
    (driver,) = child(opencl.drivers)
    link, copy = tmp_path / "linked.so", tmp_path / "absent.so"
    link.symlink_to(driver.path)
    twice = Child(EDGETUNE_OPENCL=f"{driver.path}:{link}:{copy}")
    try:
        first, second, third = twice(opencl.drivers)
    finally:
        twice.close()
    assert first.devices == driver.devices
    assert second.devices == ()
    assert "listed already" in second.problem
    assert "cannot be opened" in third.problem


def test_a_copy_of_a_driver_is_listed_once(noop_driver, tmp_path):
    copy = tmp_path / "libcopy.so"
    shutil.copy(noop_driver, copy)
    both = Child(EDGETUNE_OPENCL=f"{noop_driver}:{copy}")
    try:
        first, second = both(opencl.drivers)
    finally:
        both.close()
    assert first.devices == (0, 1)
    assert second.devices == ()
    assert "listed already" in second.problem


def _errors_of_no_device() -> list[tuple[str, str]]:
    return [error_of(opencl.device_info, 0), error_of(_allocate, 0)]


def _allocate(index: int) -> None:
    tensor(np.zeros(4, "float32"), index)


def test_missing_drivers_give_one_line_that_says_what_to_do(tmp_path):
    not_a_library = tmp_path / "libnonsense.so"
    not_a_library.write_text("no library")
    nothing = Child(EDGETUNE_OPENCL=f"/nowhere/libabsent.so:{not_a_library}:libm.so.6")
    try:
        problems = [driver.problem for driver in nothing(opencl.drivers)]
        found = nothing(opencl.devices)
        (kind, text), (_, from_tvm) = nothing(_errors_of_no_device)
    finally:
        nothing.close()
    assert found == []
    assert "cannot be opened" in problems[0]
    assert "cannot be opened" in problems[1]
    assert "lacks clGetPlatformIDs" in problems[2]
    assert kind == "BadInput"
    assert "\n" not in text
    assert "/nowhere/libabsent.so" in text
    assert "edgetune[opencl]" in text
    assert "no device opencl:0" in from_tvm
    assert "\n" not in from_tvm


def test_a_wrong_number_names_what_there_is(child):
    name = child(opencl.devices)[0].name
    kind, text = child(error_of, opencl.device_info, 7)
    assert kind == "BadInput"
    assert "opencl:7" in text
    assert f"opencl:0 ({name})" in text
    assert "\n" not in text
    kind, text = child(error_of, _allocate, 7)
    assert kind == "ValueError"
    assert f"opencl:0 ({name})" in text
    assert "\n" not in text


def _fork_and_use() -> tuple[str, str]:
    x = tensor(np.zeros(4, np.int32))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        kind, text = error_of(add_one(), x, 1, 4)
        os.write(writer, f"{kind}\n{text}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        kind, _, text = pipe.read().partition("\n")
    os.waitpid(pid, 0)
    return kind, text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_use_after_a_fork_is_refused_instead_of_hanging(child):
    kind, text = child(_fork_and_use)
    assert kind == "RuntimeError"
    assert "fork" in text
    assert "\n" not in text


def _fork_before_use() -> int:
    pid = os.fork()
    if pid == 0:
        x = tensor(np.zeros(4, np.int32))
        add_one()(x, 1, 4)
        os._exit(0 if (x.numpy() == 1).all() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_process_forked_before_the_first_use_works(child):
    (driver,) = child(opencl.drivers)
    fresh = Child(EDGETUNE_OPENCL=driver.path)
    try:
        assert fresh(_fork_before_use) == 0
    finally:
        fresh.close()
