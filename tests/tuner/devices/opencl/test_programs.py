"""Building programs: the driver's log, build options, the cache of binaries."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.tuner.devices.opencl.support import ADD_ONE, BUFFER, Child, error_of, module_of, tensor
from tuner.devices import opencl


def _run(source: str) -> int:
    """What the kernel `add_one` of `source` makes of 41."""
    x = tensor(np.array([41], np.int32))
    module_of(source, {"add_one": [BUFFER]})["add_one"](x, 1, 1)
    return int(x.numpy()[0])


def test_a_build_error_shows_the_drivers_log(child):
    name = child(opencl.devices)[0].name
    kind, text = child(error_of, _run, "__kernel void add_one(__global int* x) { x[0] = not_declared; }")
    assert kind == "RuntimeError"
    assert text.startswith(f"opencl:0 ({name}): a program cannot be built (CL_BUILD_PROGRAM_FAILURE)")
    assert "not_declared" in text.split("the driver's log:\n")[1]


def test_a_kernel_that_is_not_there_is_named(child):
    _, text = child(error_of, _run, "__kernel void other(__global int* x) { x[0] = 1; }")
    assert "clCreateKernel(add_one) failed: CL_INVALID_KERNEL_NAME" in text


def _run_with_options(options: str) -> tuple[int, int, int]:
    source = "__kernel void add_one(__global int* x) { x[0] += STEP; }"
    opencl.set_build_options(0, options)
    by_device = _run(source)
    opencl.set_build_options(0, "")
    by_source = _run(f"// edgetune-build-options: -DSTEP=5\n{source}\n")
    last_line = _run(f"{source}\n// edgetune-build-options: -DSTEP=7")
    return by_device, by_source, last_line


def test_build_options_come_from_the_device_and_the_source(child):
    assert child(_run_with_options, "-DSTEP=2") == (43, 46, 48)


def test_an_option_that_the_driver_does_not_know_is_shown(child):
    _, text = child(error_of, _run, f"// edgetune-build-options: -nonsense\n{ADD_ONE}")
    assert "-nonsense" in text


# ---- the cache -------------------------------------------------------------------------------------------------------


def _run_cached(folder: Path | None, source: str, options: str = "") -> tuple[int, int, int]:
    """The result, and how many programs were compiled and loaded."""
    opencl.set_binary_cache(folder)
    opencl.set_build_options(0, options)
    before = opencl.counters()
    result = _run(source)
    after = opencl.counters()
    return (result, *(after[key] - before[key] for key in ("programs_compiled", "programs_loaded")))


COMPILED, LOADED = (42, 1, 0), (42, 0, 1)


def test_another_process_compiles_nothing(child, tmp_path):
    assert child(_run_cached, tmp_path, ADD_ONE) == COMPILED
    assert child(_run_cached, tmp_path, ADD_ONE) == LOADED
    (driver,) = child(opencl.drivers)
    other = Child(EDGETUNE_OPENCL=driver.path)
    try:
        assert other(_run_cached, tmp_path, ADD_ONE) == LOADED
    finally:
        other.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".bin"]


def test_another_source_or_option_is_another_entry(child, tmp_path):
    assert child(_run_cached, tmp_path, ADD_ONE) == COMPILED
    assert child(_run_cached, tmp_path, ADD_ONE + "\n") == COMPILED
    assert child(_run_cached, tmp_path, ADD_ONE, "-DUNUSED=1") == COMPILED
    assert child(_run_cached, tmp_path, ADD_ONE, "-DUNUSED=1") == LOADED
    assert len(list(tmp_path.iterdir())) == 3


def _damage_byte(entry: Path, at: int) -> None:
    data = bytearray(entry.read_bytes())
    data[at] ^= 1
    entry.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry.write_bytes(b""),
        lambda entry: entry.write_bytes(entry.read_bytes()[:-1]),
        lambda entry: entry.write_bytes(entry.read_bytes() + b"x"),
        lambda entry: _damage_byte(entry, 3),
        lambda entry: _damage_byte(entry, entry.stat().st_size // 2),
        lambda entry: _damage_byte(entry, entry.stat().st_size - 1),
    ],
)
def test_a_damaged_entry_is_ignored_and_replaced(child, tmp_path, damage):
    assert child(_run_cached, tmp_path, ADD_ONE) == COMPILED
    (entry,) = tmp_path.iterdir()
    damage(entry)
    assert child(_run_cached, tmp_path, ADD_ONE) == COMPILED
    assert child(_run_cached, tmp_path, ADD_ONE) == LOADED


def test_a_cache_that_cannot_be_written_costs_nothing_else(child, tmp_path):
    occupied = tmp_path / "a file"
    occupied.write_text("")
    assert child(_run_cached, occupied / "folder", ADD_ONE) == COMPILED
    assert child(_run_cached, None, ADD_ONE) == COMPILED
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


def test_the_least_used_entries_go_when_the_cache_is_full(noop, tmp_path):
    for age in range(6):
        old = tmp_path / f"{age}.bin"
        with old.open("wb") as file:
            file.truncate(50 << 20)  # sparse: takes no space
        os.utime(old, (1e9 - age, 1e9 - age))
    assert noop(_run_cached, tmp_path, ADD_ONE)[1:] == (1, 0)
    left = {path.name for path in tmp_path.iterdir()}
    assert {f"{age}.bin" for age in range(3)} <= left
    assert not left & {"3.bin", "4.bin", "5.bin"}
    assert len(left) == 4
