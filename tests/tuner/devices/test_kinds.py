"""The contract of every kind of device in the registry."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tvm

from tuner.devices import DeviceKind, all_kinds, find_device, kind_of, kinds_on_boards, open_device, usable_cpus
from tuner.devices.board import name_on_board
from tuner.devices.kind import NumberedKind
from tuner.errors import BadInput

KINDS = all_kinds()
SPECS = {
    "cpu": ("cpu",),
    "opencl": ("opencl:0", "opencl:12"),
    "cuda": ("cuda:0", "cuda:12"),
    "board": ("board:pi", "board:pi/opencl:0", "board:a+b/cuda:1"),
}
NO_SPECS = ("", "gpu", "CPU", "cpu:0", "opencl", "opencl:", "opencl:-1", "opencl:x", "cuda:0,cpu", " cpu", "boards:pi")

each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def specs_of(kind: DeviceKind) -> tuple[str, ...]:
    return SPECS.get(kind.name, ()) or (kind.example,)


@each
def test_a_kind_recognises_its_own_specs_and_no_other_kind_does(kind: DeviceKind) -> None:
    for spec in specs_of(kind):
        assert [other for other in KINDS if other.recognises(spec)] == [kind]
        assert kind_of(spec) is kind


@each
def test_what_a_shell_completes_and_a_person_reads_belongs_to_the_kind(kind: DeviceKind) -> None:
    assert kind.example.startswith(kind.name)
    assert kind.usage.startswith(kind.name)
    assert kind.recognises(kind.example)


def test_names_usages_and_examples_are_each_ones_own() -> None:
    for names in ([k.name for k in KINDS], [k.usage for k in KINDS], [k.example for k in KINDS]):
        assert len(set(names)) == len(names)


@each
def test_numbered_specs_survive_being_read_and_written(kind: DeviceKind) -> None:
    if not isinstance(kind, NumberedKind):
        pytest.skip("its devices have no numbers")
    for number in (0, 7, 12):
        assert kind.number(kind.spec(number)) == number
        assert kind.recognises(kind.spec(number))
    assert kind.number(kind.example) == 0


@pytest.mark.parametrize("spec", NO_SPECS)
def test_what_no_kind_recognises_is_one_line_with_all_choices(spec: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_device(spec)
    assert str(caught.value) == f"unknown device {spec!r}: give cpu, opencl:N, cuda:N or board:NAME"


@each
def test_devices_that_are_here_have_the_names_and_keys_that_they_are_found_by(kind: DeviceKind) -> None:
    for device in kind.list_here():
        assert device.kind is kind
        assert device.key.kind == kind.key_kind
        assert device.is_host == kind.is_cpu
        again = open_device(device.name)
        assert (again.name, str(again.target), again.key) == (device.name, str(device.target), device.key)
        found = find_device(device.key)
        assert found is not None
        assert found.key == device.key


@each
def test_a_device_reaches_another_process_and_has_its_kind_there(kind: DeviceKind) -> None:
    for device in kind.list_here():
        sent = pickle.loads(pickle.dumps(device))
        assert (sent.name, str(sent.target), sent.key) == (device.name, str(device.target), device.key)
        assert sent.kind.name == kind.name


@each
def test_tvm_has_memory_on_every_device_that_is_here(kind: DeviceKind) -> None:
    for device in kind.list_here():
        place, numbers = kind.runtime_device(device.name), np.arange(5, dtype=np.float32)
        assert place == device.tvm_device()
        np.testing.assert_array_equal(tvm.runtime.tensor(numbers, place).numpy(), numbers)


@each
def test_measuring_runs_on_usable_cores_as_many_as_there_are_threads(kind: DeviceKind) -> None:
    for device in kind.list_here():
        cores = list(kind.measuring_cores(device, usable_cpus()))
        assert set(cores) <= set(usable_cpus())
        assert len(set(cores)) == len(cores) >= device.threads
        assert len(cores) == device.threads or not kind.is_cpu


@each
def test_a_kind_without_threads_refuses_a_number_of_them(kind: DeviceKind) -> None:
    if kind.takes_threads:
        pytest.skip("it takes threads")
    for device in kind.list_here():
        with pytest.raises(BadInput, match="a number of threads is for the device cpu"):
            open_device(device.name, 1)


@each
def test_a_number_that_is_not_here_is_one_line(kind: DeviceKind) -> None:
    if not isinstance(kind, NumberedKind):
        pytest.skip("its devices have no numbers")
    with pytest.raises(BadInput, match=kind.spec(99_999)) as caught:
        open_device(kind.spec(99_999))
    assert "\n" not in str(caught.value)


@each
def test_a_kind_is_measured_in_one_way(kind: DeviceKind) -> None:
    """On the CPU of this machine, by a runtime of TVM here, or in another machine."""
    assert not (kind.is_cpu and kind.is_remote)
    assert kind.queue_depth in (1, 2)
    assert not (kind.is_cpu and kind.keeps_binaries)
    if kind.is_remote:
        assert kind.list_here() == []
        with pytest.raises(BadInput, match="not in this machine"):
            kind.runtime_device(kind.example + "pi")
    else:
        spec = specs_of(kind)[0]
        assert (kind.form(spec), kind.called(spec), kind.spec_there(spec)) == ("library", spec, spec)


@pytest.mark.parametrize("kind", kinds_on_boards(), ids=lambda kind: kind.name)
def test_what_boards_have_is_named_and_run_there_as_it_is_described(kind: DeviceKind) -> None:
    assert kind.on_boards is not None
    name, board = name_on_board("pi", kind.example), kind_of("board:pi")
    assert board.recognises(name)
    assert board.spec_there(name) == kind.example
    assert board.called(name) == "board pi"
    assert board.form(name) == kind.on_boards.form
    assert (kind.on_boards.form == "library") == kind.is_cpu
    described: dict[str, object] = {"opencl": [{}], "cuda": [{}]}
    assert list(kind.on_boards.listed(described)) == [kind.example]
