"""What a device refuses is found in the lowered code, and nothing else is."""

from __future__ import annotations

import pytest
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target

from templates.gpu.checks import violations
from templates.gpu.limits import GpuLimits, gpu_target
from templates.gpu.lowered import Lowered, lower

MALI = GpuLimits("opencl", "mali", 256, 16384, 4, fp16=False)
NANO = GpuLimits("cuda", "nvidia", 1024, 49152, 4, (32,), fp16=True, arch="sm_53")


def lowered(func: tirx.PrimFunc, limits: GpuLimits = MALI) -> Lowered:
    return lower(func, gpu_target(limits, Target("llvm")))


def lines(func: tirx.PrimFunc, limits: GpuLimits = MALI) -> list[str]:
    return violations(lowered(func, limits), limits)


def doubled(items: int, vector: int = 1, groups: int = 2, axis: str = "x", dtype: str = "float32") -> tirx.PrimFunc:
    """out = data + data with `groups` groups of `items` items that hold a vector each."""
    data = te.placeholder((groups * items * vector,), name="data", dtype=dtype)
    out = te.compute(data.shape, lambda i: data[i] + data[i], name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    (loop,) = schedule.get_loops(schedule.get_sblock("out"))
    group, item, lane = schedule.split(loop, [groups, items, vector])
    schedule.bind(group, f"blockIdx.{axis}")
    schedule.bind(item, f"threadIdx.{axis}")
    schedule.vectorize(lane)
    return schedule.mod["main"]


def through_local_memory(count: int) -> tirx.PrimFunc:
    """64 items copy `count` values to local memory and read them back."""
    data = te.placeholder((4, count), name="data")
    out = te.compute(data.shape, lambda i, j: data[i, j] * 2.0, name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    block = schedule.get_sblock("out")
    copy = schedule.cache_read(block, 0, "shared")
    rows, columns = schedule.get_loops(block)
    schedule.bind(rows, "blockIdx.x")
    schedule.compute_at(copy, rows)
    for loop in (columns, schedule.get_loops(copy)[-1]):
        schedule.bind(schedule.split(loop, [None, 64])[1], "threadIdx.x")
    return schedule.mod["main"]


@T.prim_func(s_tir=True)
def barrier_below_a_condition(data: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    item = T.launch_thread("threadIdx.x", 64)
    if item < 8:
        T.evaluate(T.tvm_storage_sync("shared"))
    out[item] = data[item]


@T.prim_func(s_tir=True)
def barrier_for_whole_groups(data: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    group = T.launch_thread("blockIdx.x", 2)
    item = T.launch_thread("threadIdx.x", 32)
    if group < 1:
        T.evaluate(T.tvm_storage_sync("shared"))
    out[group * 32 + item] = data[group * 32 + item]


@T.prim_func(s_tir=True)
def barrier_in_an_uneven_loop(data: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    item = T.launch_thread("threadIdx.x", 64)
    local = T.sblock_alloc_buffer((64,), "float32", scope="shared")
    for i in range(item % 4):
        local[item] = data[i]
        out[item] = out[item] + local[63 - item]


def summed_across_items(warp: int) -> Lowered:
    """A reduction across 64 items, for an OpenCL target of a warp size."""
    data, k = te.placeholder((64, 256), name="data"), te.reduce_axis((0, 256), "k")
    out = te.compute((64,), lambda i: te.sum(data[i, k], axis=k), name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    row, column = schedule.get_loops(schedule.get_sblock("out"))
    outer, inner = schedule.split(column, [None, 64])
    schedule.reorder(inner, outer)
    schedule.bind(row, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    target = Target({"kind": "opencl", "max_threads_per_block": 256, "thread_warp_size": warp})
    return lower(schedule.mod["main"], target.with_host(Target("llvm")))


def test_a_kernels_launch_and_memory_are_read_from_its_code():
    (kernel,) = lowered(through_local_memory(256)).kernels
    assert (kernel.grid, kernel.group, kernel.items) == ((4, 1, 1), (64, 1, 1), 64)
    assert kernel.local_bytes == 256 * 4
    assert kernel.arguments == 2
    assert kernel.types == ("float32",)
    assert kernel.barriers == 1
    (vectors,) = lowered(doubled(32, vector=4)).kernels
    assert vectors.types == ("float32x4",)


@pytest.mark.parametrize(
    "func", [doubled(256), doubled(64, vector=16), through_local_memory(4096), barrier_for_whole_groups]
)
def test_what_the_device_allows_is_allowed(func):
    assert lines(func) == []


@pytest.mark.parametrize(
    ("func", "says"),
    [
        (doubled(512), "main_kernel: work-group of 512 items, the device allows 256"),
        (through_local_memory(4160), "main_kernel: 16640 bytes of local memory, the device allows 16384"),
        (doubled(8, vector=5), "main_kernel: float32x5: OpenCL has no vector of 5"),
        (doubled(8, dtype="float16"), "main_kernel: float16: the device has no half precision"),
        (
            doubled(8, dtype="float64"),
            "main_kernel: float64: no edge GPU computes in double precision at a useful rate",
        ),
    ],
)
def test_what_it_does_not_allow_is_one_line(func, says):
    assert lines(func) == [says]


@pytest.mark.parametrize(
    ("func", "says"),
    [
        (doubled(128, axis="z"), "main_kernel: work-group of 128 along z, CUDA allows 64"),
        (doubled(1, groups=70000, axis="y"), "main_kernel: grid of 70000 along y, CUDA allows 65535"),
        (doubled(8, vector=8), "main_kernel: float32x8: CUDA's widest vector has 128 bits"),
    ],
)
def test_cuda_has_limits_of_its_own(func, says):
    assert lines(func, NANO) == [says]


def test_half_vectors_of_128_bits_are_allowed_in_cuda():
    assert lines(doubled(8, vector=8, dtype="float16"), NANO) == []


def test_too_many_arguments_are_found():
    inputs = [te.placeholder((64,), name=f"in{i}") for i in range(140)]
    out = te.compute((64,), lambda i: sum((x[i] for x in inputs[1:]), inputs[0][i]), name="out")
    schedule = Schedule(te.create_prim_func([*inputs, out]))
    schedule.bind(schedule.get_loops(schedule.get_sblock("out"))[0], "threadIdx.x")
    assert lines(schedule.mod["main"]) == ["main_kernel: 141 arguments, the device allows 128"]


@pytest.mark.parametrize("func", [barrier_below_a_condition, barrier_in_an_uneven_loop])
def test_a_barrier_that_some_items_miss_is_found(func):
    assert lines(func) == ["main_kernel: a barrier in divergent flow: not every item of a group reaches it"]


def test_reductions_across_items_diverge_for_any_warp_size_but_1():
    assert [kernel.divergent_barrier for kernel in summed_across_items(1).kernels] == [False]
    assert [kernel.divergent_barrier for kernel in summed_across_items(16).kernels] == [True]


def two_stages(*bound: str) -> tirx.PrimFunc:
    """out = twice + 1, where twice = 2 * data; the stages named run on the device."""
    data = te.placeholder((64,), name="data")
    twice = te.compute(data.shape, lambda i: data[i] * 2.0, name="twice")
    out = te.compute(data.shape, lambda i: twice[i] + 1.0, name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    for name in bound:
        schedule.bind(schedule.get_loops(schedule.get_sblock(name))[0], "threadIdx.x")
    return schedule.mod["main"]


def test_code_without_a_kernel_is_found():
    says = "nothing runs on the device: no loop is bound to its groups and items"
    assert lines(two_stages()) == [says]
    assert lowered(two_stages()).source() == ""


def test_code_that_stays_on_the_host_is_found():
    found = lowered(two_stages("twice"))
    assert violations(found, MALI) == ["the host reads or writes device memory in 2 places: a loop is not bound"]
    assert found.workspace_bytes == 64 * 4


def test_the_source_is_that_of_all_kernels():
    found = lowered(two_stages("twice", "out"))
    assert len(found.kernels) == 2
    assert all(f"__kernel void {kernel.name}(" in found.source() for kernel in found.kernels)
    assert "__global__ void" in lowered(two_stages("twice", "out"), NANO).source()


def test_a_template_may_change_the_target_of_its_function():
    own = Target({**gpu_target(MALI, Target("llvm")).export(), "thread_warp_size": 16})
    found = lowered(doubled(64).with_attr("target", own))
    assert [int(target.attrs["thread_warp_size"]) for target, _ in found.device] == [16]
    assert "__kernel void main_kernel(" in found.source()
    assert violations(found, MALI) == []
