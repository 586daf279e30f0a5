"""Buffers, copies with offsets, workspaces."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from board_agent.sandbox import resident_bytes
from tests.tuner.devices.opencl.support import TARGET, Child, add_one, device, error_of, tensor
from tuner.devices import opencl
from tuner.measure.codegen.toolchain import ENTRY, build_shared, check_toolchain

_OPENCL = 4  # DLPack's number of the device type


def _copies() -> dict[str, int]:
    values = np.arange(1000, dtype=np.int16)
    before = opencl.counters()
    first = tensor(values)
    second = tvm.runtime.empty((1000,), "int16", device())
    second.copyfrom(first)
    np.testing.assert_array_equal(second.numpy(), values)
    view = second._create_view((300,), "int16", relative_byte_offset=200)  # elements 100 to 399
    np.testing.assert_array_equal(view.numpy(), values[100:400])
    view.copyfrom(np.full(300, -1, np.int16))
    third = tvm.runtime.empty((300,), "int16", device())
    third.copyfrom(view)
    np.testing.assert_array_equal(third.numpy(), np.full(300, -1))
    expected = values.copy()
    expected[100:400] = -1
    np.testing.assert_array_equal(second.numpy(), expected)
    empty = tvm.runtime.empty((0, 3), "float32", device())
    assert empty.numpy().shape == (0, 3)
    return {key: value - before[key] for key, value in opencl.counters().items()}


def test_copies_with_offsets_are_counted(child):
    spent = child(_copies)
    assert spent["bytes_to_device"] == 2000 + 600
    assert spent["bytes_from_device"] == 2000 + 600 + 600 + 2000
    assert spent["bytes_on_device"] == 2000 + 600
    assert spent["allocations"] == 4


def _freed_again() -> tuple[int, int]:
    """How much the process has grown after 64 buffers of 4 MiB, one after the other, and after the first two."""
    grown, values = [], np.arange(1 << 20, dtype=np.float32)
    for _ in range(64):
        buffer = tvm.runtime.empty(values.shape, "float32", device())
        buffer.copyfrom(values)
        np.testing.assert_array_equal(buffer.numpy(), values)
        del buffer
        grown.append(resident_bytes())
    return grown[-1], grown[1]


def test_large_buffers_are_given_back(child):
    """Those of a processor's driver lie in memory of ours, which goes when the driver has let go of them."""
    last, first = child(_freed_again)
    assert last - first < 16 << 20


def _copied_behind_kernels() -> bool:
    f, size = add_one(), 1 << 16
    x, right = tensor(np.zeros(size, np.int32)), True
    for step in range(100):
        for _ in range(5):
            f(x, size // 64, 64)
        right &= bool((x.numpy() == step + 5).all())  # which is enqueued behind all of them
        for _ in range(5):
            f(x, size // 64, 64)
        x.copyfrom(np.full(size, step + 1, np.int32))
    return right


def test_a_copy_waits_for_the_kernels_before_it(child):
    assert child(_copied_behind_kernels)


def _calls_of_host_threads() -> list[tuple[str, ...]]:
    calls: list[str] = []
    function = ctypes.CFUNCTYPE(None)
    rest, rise = function(lambda: calls.append("rest")), function(lambda: calls.append("rise"))
    x, f, found = tensor(np.zeros(64, np.int32)), add_one(), []
    opencl.set_host_threads(*(ctypes.cast(call, ctypes.c_void_p).value for call in (rest, rise)))
    for work in (lambda: f(x, 1, 64), x.numpy, lambda: x.copyfrom(np.zeros(64, np.int32))):
        work()
        found.append(tuple(calls))
        calls.clear()
    opencl.set_host_threads(0, 0)
    f(x, 1, 64)
    return [*found, tuple(calls)]


def test_the_hosts_threads_rest_while_a_processor_works(child):
    if child(opencl.devices)[0].type != "cpu":
        pytest.skip("opencl:0 has cores of its own")
    assert child(_calls_of_host_threads) == [("rest",), ("rise",), (), ()]


def _between(source: int, target: int) -> bool:
    values = np.random.default_rng(0).integers(0, 255, 40 << 20, np.uint8)  # more than one piece
    there = tvm.runtime.empty(values.shape, "uint8", device(target))
    there.copyfrom(tensor(values, source))
    return bool((there.numpy() == values).all())


def test_copies_between_devices_of_different_drivers(every_driver):
    count = len(every_driver(opencl.devices))
    if count < 2:
        pytest.skip("there is one device only")
    assert every_driver(_between, 0, count - 1)
    assert every_driver(_between, count - 1, 0)


def _allocate(size: int) -> object:
    return tvm.runtime.empty((size,), "uint8", device())


def test_too_much_memory_gives_one_line(child):
    info = child(opencl.devices)[0]
    kind, text = child(error_of, _allocate, 4 * info.global_memory_bytes)
    assert kind == "MemoryError"
    assert f"opencl:0 ({info.name})" in text
    assert str(4 * info.global_memory_bytes) in text
    assert str(info.max_alloc_bytes) in text
    assert "\n" not in text


def _with_workspace(folder: str, size: int) -> object:
    """Two kernels with `size` floats between them, in a library as the tuner links it."""
    wide = tirx.IntImm("int64", size)
    data = te.placeholder((64,), name="data")
    between = te.compute((wide,), lambda i: data[i % 64] + 1.0, name="between")
    out = te.compute((64,), lambda i: between[i] + between[wide - 1 - i], name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    for block in ("between", "out"):
        (loop,) = schedule.get_loops(schedule.get_sblock(block))
        groups, items = schedule.split(loop, [None, 64])
        schedule.bind(groups, "blockIdx.x")
        schedule.bind(items, "threadIdx.x")
    target = Target(TARGET)
    path = Path(folder) / f"workspace{size}.so"
    build_shared(schedule.mod["main"], target, path, check_toolchain())
    x, y = tensor(np.zeros(64, np.float32)), tensor(np.zeros(64, np.float32))
    tvm.runtime.load_module(str(path))[ENTRY](x, y)
    return float(y.numpy().sum())


def test_a_workspace_that_there_is_no_memory_for_is_one_line(child, tmp_path):
    assert child(_with_workspace, str(tmp_path), 4096) == 128
    size = child(opencl.devices)[0].global_memory_bytes
    kind, text = child(error_of, _with_workspace, str(tmp_path), size)
    assert kind == "MemoryError"
    assert f"a buffer of {4 * size} bytes cannot be allocated" in text
    assert child(_with_workspace, str(tmp_path), 4096) == 128


def _freed_while_in_use() -> bool:
    f, size = add_one(), 1 << 16
    kept = []
    for step in range(300):
        x = tensor(np.full(size, step, np.int32))
        f(x, size // 64, 64)
        if step % 10 == 0:
            kept.append((step, x))
        del x  # its kernel may not have run yet, and the next buffer may get its memory
    return all((x.numpy() == step + 1).all() for step, x in kept)


def test_a_buffer_may_be_freed_while_kernels_use_it(child):
    before = child(opencl.counters)
    assert child(_freed_while_in_use)
    after = child(opencl.counters)
    assert after["allocations"] - before["allocations"] == 300
    assert after["releases"] - before["releases"] == 300
    copies = 300 + 30  # TVM waits after each copy from or to the host
    assert after["finishes"] - before["finishes"] == copies


def _noop_calls(name: str) -> int:
    (driver,) = opencl.drivers()
    return int(ctypes.CDLL(driver.path).noop_calls(name.encode()))


def _use_one() -> None:
    tensor(np.zeros(16, np.int32))


def _free_one() -> None:
    tvm.runtime.empty((16,), "int32", device())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("vendor", "waits"), [("nobody", 0), ("ARM", 1), ("QUALCOMM", 1)])
def test_only_drivers_known_for_it_are_waited_for_before_a_release(noop_driver, vendor, waits):
    child = Child(EDGETUNE_OPENCL=str(noop_driver), NOOP_VENDOR=vendor)
    try:
        child(_use_one)
        before = child(_noop_calls, "finish")
        child(_free_one)
        assert child(_noop_calls, "finish") - before == waits
    finally:
        child.close()


# ---- workspaces ------------------------------------------------------------------------------------------------------


def _three_stages(size: int) -> object:
    """A function of three kernels with two intermediate results in device memory: out = ((x + 1) * 2) - 3."""
    x = te.placeholder((size,), name="x")
    first = te.compute((size,), lambda i: x[i] + 1.0, name="first")
    second = te.compute((size,), lambda i: first[i] * 2.0, name="second")
    out = te.compute((size,), lambda i: second[i] - 3.0, name="out")
    schedule = Schedule(te.create_prim_func([x, out]))
    for name in ("first", "second", "out"):
        (loop,) = schedule.get_loops(schedule.get_sblock(name))
        groups, items = schedule.split(loop, [None, 64])
        schedule.bind(groups, "blockIdx.x")
        schedule.bind(items, "threadIdx.x")
    return tvm.compile(schedule.mod, target=tvm.target.Target(TARGET))["main"]


def _spent_by_calls(calls: int) -> dict[str, int]:
    functions = {size: _three_stages(size) for size in (1 << 10, 1 << 16)}
    data = {size: (tensor(np.arange(size, dtype=np.float32)), tensor(np.zeros(size, np.float32))) for size in functions}
    for _ in range(2):  # the pool learns the pattern
        for size, function in functions.items():
            function(*data[size])
    before = opencl.counters()
    for _ in range(calls):
        for size, function in functions.items():
            function(*data[size])
    spent = {key: value - before[key] for key, value in opencl.counters().items()}
    for size, (_, out) in data.items():
        np.testing.assert_allclose(out.numpy(), (np.arange(size, dtype=np.float32) + 1) * 2 - 3)
    return spent


def test_calls_allocate_and_wait_for_nothing(child):
    spent = child(_spent_by_calls, 50)
    assert spent.pop("launches") == 50 * 2 * 3
    assert spent.pop("workspaces") == 50 * 2  # TVM computes the second result in the first one's place
    assert set(spent.values()) == {0}


def _take_and_give(sizes: list[int], times: int) -> dict[str, int]:
    """Take workspaces of these sizes, give them back in reverse, so many times; what it cost."""
    runtime = ctypes.CDLL(None)
    take, give = runtime.TVMBackendAllocWorkspace, runtime.TVMBackendFreeWorkspace
    take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_int, ctypes.c_uint64] + [ctypes.c_int] * 2
    give.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    before = opencl.counters()
    for _ in range(times):
        for taken in reversed([take(_OPENCL, 0, size, 2, 32) for size in sizes]):
            assert give(_OPENCL, 0, taken) == 0
    return {key: value - before[key] for key, value in opencl.counters().items()}


def test_the_pool_grows_to_the_deepest_pattern_and_no_further(noop):
    assert noop(_take_and_give, [1000, 100_000, 5000], 5)["allocations"] == 3
    spent = noop(_take_and_give, [100_000, 200_000], 5)
    assert (spent["allocations"], spent["releases"]) == (1, 1)
    spent = noop(_take_and_give, [5000, 100_000, 200_000], 5)
    assert (spent["allocations"], spent["releases"]) == (1, 1)
    assert noop(_take_and_give, [5000, 100_000, 200_000], 5)["allocations"] == 0
    assert noop(_take_and_give, [1000, 100_000, 5000], 5)["allocations"] == 0


def _kernels_beside_a_workspace_of_another_stream() -> int:
    """Two streams never share a free workspace: nothing orders their kernels."""
    _take_and_give([1 << 20], 1)
    stream = device().create_raw_stream()
    device().set_raw_stream(stream)
    spent = _take_and_give([1 << 20], 1)
    device().set_raw_stream(0)
    device().free_raw_stream(stream)
    assert opencl.counters()["releases"] == 1
    return spent["allocations"]


def test_streams_have_workspaces_of_their_own(noop):
    assert noop(_kernels_beside_a_workspace_of_another_stream) == 1
