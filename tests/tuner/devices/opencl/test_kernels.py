"""Kernels: all argument types, modules that TVM built, streams, timers, threads."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.tuner.devices.opencl.support import (
    BUFFER,
    INT32,
    Child,
    add_one,
    build_elementwise,
    device,
    error_of,
    module_of,
    tensor,
)
from tuner.devices import opencl, runtime_device

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def _add_scalar(dtype: str, number: float) -> np.ndarray:
    module = build_elementwise(lambda x, s: x + s, 64, [dtype], [dtype], dtype)
    out = tensor(np.zeros(64, dtype))
    module["main"](tensor(np.zeros(64, dtype)), number, out)
    return out.numpy()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arguments_keep_every_bit(child, dtype):
    limits = np.iinfo(dtype)
    largest = min(int(limits.max), 2**63 - 1)  # what TVM can pass
    for number in (largest, int(limits.min), 77):
        np.testing.assert_array_equal(child(_add_scalar, dtype, number), np.full(64, number, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_arguments_are_rounded_to_their_type(child, dtype):
    info = child(opencl.devices)[0]
    if not getattr(info, {"float16": "fp16", "float64": "fp64"}.get(dtype, "name")):
        pytest.skip(f"{info.name} has no {dtype}")
    limits = np.finfo(dtype)
    numbers = [0.1, -1 / 3, 1e-7, float(limits.max), float(limits.tiny), float("inf"), 2049.0, 65519.0]
    for number in numbers:
        expected = np.full(64, np.dtype(dtype).type(number))
        np.testing.assert_array_equal(child(_add_scalar, dtype, number), expected)
    assert np.isnan(child(_add_scalar, dtype, float("nan"))).all()


def _halves(numbers: np.ndarray) -> np.ndarray:
    """The 16 bits that a kernel gets for each number as a half argument. It takes them as an integer, so that drivers
    without halves can tell too."""
    source = "__kernel void get(__global ushort* out, ushort bits, uint at) { out[at] = bits; }"
    get = module_of(source, {"get": [BUFFER, (2, 16, 1), (1, 32, 1)]})["get"]
    out = tensor(np.zeros(len(numbers), np.uint16))
    for at, number in enumerate(numbers):
        get(out, float(number), at, 1, 1)
    return out.numpy()


def test_halves_are_rounded_as_numpy_rounds_them(child):
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 0x7BFF, 300, np.uint16)
    ties = (halves.view(np.float16).astype(np.float32) + (halves + 1).astype(np.uint16).view(np.float16)) / 2
    exponents = np.float32(2.0) ** rng.uniform(-30, 17, 300).astype(np.float32)
    special = np.array([0, -0.0, 65504, 65519.99, 65520, 2**-24, 2**-25, 1.5 * 2**-25, np.inf, -np.inf], np.float32)
    numbers = np.concatenate([ties, -ties, exponents, -exponents, special]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(child(_halves, numbers), expected)


def _errors_of_arguments() -> list[tuple[str, str]]:
    x = tensor(np.zeros(4, np.int32))
    add = module_of("__kernel void f(__global int* x, int n) { x[0] = n; }", {"f": [BUFFER, INT32]})["f"]
    view = x._create_view((2,), "int32", relative_byte_offset=8)
    vector = module_of("", {"f": [(2, 32, 4)]})
    cluster = module_of("", {"f": [BUFFER]}, ["clusterIdx.x"])
    return [
        error_of(add, x, 1),
        error_of(add, x, 1.5, 1, 1),
        error_of(add, x, x, 1, 1),
        error_of(add, tvm.runtime.tensor(np.zeros(4, np.int32)), 1, 1, 1),
        error_of(add, view, 1, 1, 1),
        error_of(lambda: vector["f"]),
        error_of(lambda: cluster["f"]),
    ]


def test_wrong_arguments_give_one_line_each(child):
    errors = child(_errors_of_arguments)
    expected = [
        "takes 4 arguments, not 2",
        "is not an integer",
        "is not a number",
        "is not on opencl:0",
        "starts inside its buffer",
        "type that OpenCL kernels do not take",
        "no launch parameter clusterIdx.x",
    ]
    for (_, text), part in zip(errors, expected, strict=True):
        assert part in text
        assert "\n" not in text


def _launch_a_large_group() -> None:
    add_one()(tensor(np.zeros(1 << 20, np.int32)), 1, 1 << 20)


def test_a_group_that_is_too_large_names_the_kernel(child):
    _, text = child(error_of, _launch_a_large_group)
    assert "clEnqueueNDRangeKernel(add_one) failed: CL_INVALID_WORK_" in text
    assert "\n" not in text


def _fma_arrays() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = [rng.random(5000, dtype=np.float32) for _ in range(3)]
    return arrays, arrays[0] * arrays[1] + arrays[2]


def _check_fma(main: Any, index: int) -> None:
    arrays, expected = _fma_arrays()
    out = tensor(np.zeros(5000, np.float32), index)
    main(*(tensor(array, index) for array in arrays), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def _compute_and_save(library: str) -> None:
    module = build_elementwise(lambda a, b, c: a * b + c, 5000, ["float32"] * 3)
    _check_fma(module["main"], 0)
    module.export_library(library)
    loaded = tvm.runtime.load_module(library)
    assert [m.kind for m in loaded.imports] == ["opencl"]
    assert "__kernel" in loaded.imports[0].inspect_source()
    _check_fma(loaded["main"], 0)


def _load_and_compute(library: str, devices: int) -> None:
    main = tvm.runtime.load_module(library)["main"]
    for index in [*range(devices), *range(devices)]:
        _check_fma(main, index)


def test_a_module_of_tvms_computes_before_and_after_it_is_saved(child, every_driver, tmp_path):
    library = str(tmp_path / "fma.so")
    child(_compute_and_save, library)
    every_driver(_load_and_compute, library, len(every_driver(opencl.devices)))


def _load_pieces() -> list[str]:
    """Errors of loading every beginning of a saved module."""
    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    whole = text("cl") + struct.pack("<Q", 1) + text("f") + text("f")
    whole += struct.pack("<QBBH", 1, 3, 64, 1) + struct.pack("<Q", 0) + struct.pack("<Q", 0) + text("source")
    assert load(whole).inspect_source() == "source"
    return [error_of(load, whole[:length])[1] for length in range(len(whole))]


def test_a_damaged_module_is_refused(noop):
    assert all("truncated or damaged" in text for text in noop(_load_pieces))


# ---- streams and timers ----------------------------------------------------------------------------------------------

# One work-item that computes for a while, so that a device with more than one compute unit has one left.
_BUSY = """
__kernel void busy(__global uint* x, uint rounds) {
  uint v = x[get_global_id(0)];
  for (uint i = 0; i < rounds; ++i) v = v * 1664525u + 1013904223u;
  x[get_global_id(0)] = v;
}
"""


def _busy_function() -> object:
    return module_of(_BUSY, {"busy": [BUFFER, (1, 32, 1)]})["busy"]


def _run_on_two_streams(rounds: int) -> list[opencl.Launch]:
    busy, d = _busy_function(), device()
    data = [tensor(np.zeros(1, np.uint32)) for _ in range(2)]
    streams = [d.create_raw_stream() for _ in range(2)]
    with opencl.trace() as launches:
        for stream, x in zip(streams, data, strict=True):
            d.set_raw_stream(stream)
            busy(x, rounds, 1, 1)
    d.set_raw_stream(0)
    d.sync()
    for stream in streams:
        d.free_raw_stream(stream)
    return launches


def test_two_queues_run_two_kernels_at_once(child):
    if child(opencl.devices)[0].compute_units < 2:
        pytest.skip("the device has one compute unit")
    for _ in range(5):  # another process may have the second core just now
        first, second = child(_run_on_two_streams, 100_000_000)
        assert (first.stream, second.stream) == (0, 1)
        assert (first.kernel, second.kernel) == ("busy", "busy")
        for launch in (first, second):
            assert launch.queued <= launch.submitted <= launch.started < launch.ended
        if max(first.started, second.started) < min(first.ended, second.ended):
            return
    pytest.fail(f"the kernels did not overlap: {first}, {second}")


def _ordered_by_events() -> bool:
    """A slow kernel on one stream, and one that has to see its result on another."""
    busy, add, d = _busy_function(), add_one(), device()
    expected = np.zeros(1, np.uint32)
    with np.errstate(over="ignore"):
        for _ in range(1000):
            expected = expected * np.uint32(1664525) + np.uint32(1013904223)
    first, second = d.create_raw_stream(), d.create_raw_stream()
    good = True
    for _ in range(20):
        x = tensor(np.zeros(1, np.uint32))
        d.set_raw_stream(first)
        busy(x, 1000, 1, 1)
        opencl.order_streams(0, first, second)
        d.set_raw_stream(second)
        add(x, 1, 1)
        good &= bool((x.numpy() == expected + 1).all())
    d.set_raw_stream(0)
    d.free_raw_stream(first)
    d.free_raw_stream(second)
    return good


def test_an_event_orders_two_streams(child):
    assert child(_ordered_by_events)


def _times(rounds: int) -> tuple[float, float, float]:
    """Seconds of a kernel by the trace of its launches, by TVM's evaluator around the same launches, and of it all."""
    module, x = module_of(_BUSY, {"busy": [BUFFER, (1, 32, 1)]}), tensor(np.zeros(1, np.uint32))
    evaluator = module.time_evaluator("busy", device(), number=1, repeat=5)
    start = time.perf_counter()
    with opencl.trace() as launches:
        evaluated = evaluator(x, rounds, 1, 1).min
    return min(launch.ended - launch.started for launch in launches) * 1e-9, evaluated, time.perf_counter() - start


def test_timers_measure_device_time(child):
    _, short, _ = child(_times, 1_000_000)
    traced, evaluated, whole = child(_times, 20_000_000)
    assert evaluated > 2 * short > 0
    assert 0.9 * traced <= evaluated <= whole / 5


# ---- many launches ---------------------------------------------------------------------------------------------------

_THREADS, _LAUNCHES = 8, 2000


def _launch_from_threads() -> dict[str, int]:
    function, before, failures = add_one(), opencl.counters(), []
    data = [tensor(np.zeros(64, np.int32)) for _ in range(_THREADS)]

    def run(x: tvm.runtime.Tensor) -> None:
        try:
            for _ in range(_LAUNCHES):
                function(x, 1, 64)
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run, args=(x,)) for x in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for x in data:
        np.testing.assert_array_equal(x.numpy(), np.full(64, _LAUNCHES))
    return {key: value - before[key] for key, value in opencl.counters().items()}


def test_threads_launch_the_same_kernel(child):
    spent = child(_launch_from_threads)
    assert spent["launches"] == _THREADS * _LAUNCHES
    assert spent["allocations"] == _THREADS
    assert spent["flushes"] == 0


def _flushed_every(launches: int) -> int:
    opencl.set_flush_every(0, launches)
    flushes = _launch_from_threads()["flushes"]
    opencl.set_flush_every(0, 0)
    return flushes


def test_queues_are_flushed_every_so_many_launches(child):
    total = _THREADS * _LAUNCHES
    assert 0.9 * total / 50 <= child(_flushed_every, 50) <= total / 50 + _THREADS


def _flushes_of_an_opened_device(launches: int) -> int:
    """How often the queue is flushed if nobody but who opens the device asks for it."""
    runtime_device("opencl:0")
    function, x = add_one(), tensor(np.zeros(64, np.int32))
    before = opencl.counters()["flushes"]
    for _ in range(launches):
        function(x, 1, 64)
    return opencl.counters()["flushes"] - before


@pytest.mark.parametrize(("vendor", "flushes"), [("nobody", 0), ("ARM", 6)])
def test_drivers_that_hang_on_long_queues_are_flushed_by_default(noop_driver, vendor, flushes):
    child = Child(EDGETUNE_OPENCL=str(noop_driver), NOOP_VENDOR=vendor)
    try:
        assert child(_flushes_of_an_opened_device, 100) == flushes
    finally:
        child.close()


def _live_objects() -> int:
    (driver,) = opencl.drivers()
    return int(ctypes.CDLL(driver.path).noop_live())


def _everything_once() -> None:
    """Each kind of object is made and let go of."""
    d = device()
    x = tvm.runtime.empty((64,), "int32", d)
    stream = d.create_raw_stream()
    d.set_raw_stream(stream)
    module_of(_BUSY, {"busy": [BUFFER, (1, 32, 1)]}).time_evaluator("busy", d, number=2, repeat=2)(x, 1, 1, 1)
    with opencl.trace():
        add_one()(x, 1, 64)
    d.set_raw_stream(0)
    d.free_raw_stream(stream)


def test_every_object_is_released(noop):
    noop(_everything_once)
    before = noop(_live_objects)
    for _ in range(3):
        noop(_everything_once)
    assert noop(_live_objects) == before
