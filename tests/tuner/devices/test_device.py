"""open_device and what a Device says of the host."""

from __future__ import annotations

import platform

import pytest
import tvm

from tuner.devices import is_emulated, list_devices, open_device, open_devices, usable_cpus
from tuner.devices.cpu import hidden_features, open_cpu
from tuner.errors import BadInput


def test_cpu_is_this_machine():
    device = open_device("cpu", 1)
    assert device.target.kind.name == "llvm"
    assert device.target.attrs["mcpu"] == tvm.get_global_func("target.llvm_get_system_cpu")()
    assert int(device.target.attrs["num-cores"]) == device.threads == 1
    assert device.key.kind == "cpu"
    assert device.key.family.startswith(platform.machine())
    assert device.key.attrs["threads"] == 1
    assert device.tvm_device() == tvm.cpu()


def test_code_uses_nothing_that_a_virtual_machine_hides():
    assert hidden_features("sapphirerapids", {"avx512fp16": False, "avx512f": True, "sse4a": False}) == ["avx512fp16"]
    assert hidden_features("sapphirerapids", {"avx2": True}) == []
    target, found = open_device("cpu", 1).target, tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    has = tvm.get_global_func("target.target_has_feature")
    assert [name for name, there in found.items() if not there and has(name, target)] == []


def test_what_an_emulated_processor_measured_never_counts_for_a_real_one(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : of the machine below\n")
    real, emulated = open_cpu(1).key, open_cpu(1, procfs=tmp_path).key
    assert (emulated.family, emulated.model) == (f"{real.family}-emulated", f"{real.model}-emulated")
    assert emulated.attrs == real.attrs
    assert (is_emulated(real), is_emulated(emulated)) == (False, True)


def test_target_survives_its_own_text():
    target = open_device("cpu", 1).target
    assert str(tvm.target.Target(str(target))) == str(target)


def test_threads_default_to_the_environment_then_to_every_core(monkeypatch):
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    assert open_device("cpu").threads == len(usable_cpus())
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert open_device("cpu").threads == 1


def test_thread_count_is_part_of_the_key(monkeypatch):
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    keys = {open_device("cpu", n).key.key for n in range(1, len(usable_cpus()) + 1)}
    assert len(keys) == len(usable_cpus())
    assert open_device("cpu", 1).key == open_device("cpu", 1).key


def test_list_devices_has_the_cpu():
    names = [device.name for device in list_devices()]
    assert names[0] == "cpu"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("spec", ["", "gpu", "opencl", "cuda:x", "cpu:0"])
def test_unknown_device_names_the_choices(spec):
    with pytest.raises(BadInput, match=r"unknown device .*opencl:N"):
        open_device(spec)


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_impossible_thread_counts(threads):
    with pytest.raises(BadInput, match="threads"):
        open_device("cpu", threads)


def test_unreadable_thread_count_in_the_environment(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    with pytest.raises(BadInput, match="TVM_NUM_THREADS"):
        open_device("cpu")


def test_several_devices():
    """Threads are the CPU's."""
    both = open_devices(["opencl:0", "cpu"], threads=1)
    assert [d.name for d in both] == ["opencl:0", "cpu"]
    assert both[1].threads == 1


@pytest.mark.parametrize(
    ("specs", "threads", "message"),
    [
        ([], None, "give devices that differ"),
        (["cpu", "cpu"], None, "give devices that differ"),
        (["opencl:0"], 1, "a number of threads is for the device cpu"),
    ],
)
def test_impossible_devices(specs, threads, message):
    with pytest.raises(BadInput, match=message):
        open_devices(specs, threads)
