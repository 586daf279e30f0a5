"""What every OpenCL kernel's text goes through, and that it runs."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from templates.gpu.limits import GpuLimits, gpu_target
from templates.gpu.opencl_text import (
    prefetch,
    with_prefetch,
    with_vector_loads,
    with_whole_accesses,
    with_wide_indices,
)
from templates.lowering import lowering_context
from templates.rewrite import mark, wrap_marked_loop
from templates.stages import new_schedule
from tests.templates.gpu.support import GPUS, HOST, PLATFORMS, Driver, driver, gpu

KERNEL = "a_ptr[((convert_int(get_group_id(0)) * 8) + convert_int(get_local_id(0)))] = 0.0f;"
CPU = gpu_target(GpuLimits("opencl", "cpu", 256, 65536, 8), HOST)


def test_a_processor_computes_addresses_in_64_bits() -> None:
    assert with_wide_indices(KERNEL, CPU) == "a_ptr[((((long)get_group_id(0)) * 8) + ((long)get_local_id(0)))] = 0.0f;"


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_does_not(name: str) -> None:
    assert with_wide_indices(KERNEL, gpu(name)) == KERNEL


def _loads(first: str, base: str, stride: int = 1) -> str:
    """Return a kernel that loads four values one by one, as TVM writes it."""
    indices = ", ".join(f"({base})+({stride}*{lane})" for lane in range(4))
    lanes = ",".join(f"{first}[v_.s{lane}]" for lane in range(4))
    return f"__kernel void k() {{\n  int4 v_ = (int4)({indices});\n  x = 2.0f * ((float4)({lanes}));\n}}\n"


def test_neighbours_are_loaded_by_one_access() -> None:
    found = with_vector_loads(_loads("a_ptr", "min(i * 3, 5)") + _loads("b_ptr", "j"), CPU)
    assert "x = 2.0f * vload4(0, a_ptr + (min(i * 3, 5)));" in found
    assert "x = 2.0f * vload4(0, b_ptr + (j));" in found  # the same name in another kernel


def test_what_is_apart_is_loaded_one_by_one() -> None:
    code = _loads("a_ptr", "i", stride=2)
    assert with_vector_loads(code, CPU) == code
    both = _loads("a_ptr", "i") + code
    assert with_vector_loads(both, CPU).endswith(code)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_vectors_begin_anywhere(platform: str, lanes: int) -> None:
    found: Driver = driver(platform)
    data = te.placeholder((40 * lanes,), name="data")
    shifted = te.compute((20 * lanes,), lambda i: data[i + 3] * tirx.const(2, "float32"), name="shifted")
    schedule = new_schedule(te.create_prim_func([data, shifted]))
    block, vector = schedule.split(schedule.get_loops(schedule.get_sblock("shifted"))[0], [None, lanes])
    schedule.bind(block, "blockIdx.x")
    schedule.vectorize(vector)
    with lowering_context():
        built = tvm.tirx.build(schedule.mod["main"], target=found.target())
    assert f"vload{lanes}(0, data" in built.imports[0].inspect_source()
    values = np.arange(40 * lanes, dtype="float32")
    out = tvm.runtime.tensor(np.zeros(20 * lanes, "float32"), found.device)
    built["main"](tvm.runtime.tensor(values, found.device), out)
    np.testing.assert_array_equal(out.numpy(), 2 * values[3 : 20 * lanes + 3])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_indices_may_be_compared_with_constants(platform: str) -> None:
    """OpenCL's min and max take no long beside an int: TVM must cast both."""
    found: Driver = driver(platform)
    data = te.placeholder((40,), name="data")
    clamped = te.compute((64,), lambda i: data[te.max(te.min(i - 8, 39), 0)], name="clamped")
    schedule = new_schedule(te.create_prim_func([data, clamped]))
    block, thread = schedule.split(schedule.get_loops(schedule.get_sblock("clamped"))[0], [None, 4])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    with lowering_context():
        built = tvm.tirx.build(schedule.mod["main"], target=found.target())
    values = np.arange(40, dtype="float32")
    out = tvm.runtime.tensor(np.zeros(64, "float32"), found.device)
    built["main"](tvm.runtime.tensor(values, found.device), out)
    np.testing.assert_array_equal(out.numpy(), values[np.clip(np.arange(64) - 8, 0, 39)])


def test_only_kernels_that_prefetch_say_how() -> None:
    assert with_prefetch(KERNEL, CPU) == KERNEL


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_is_prefetched_may_lie_outside(platform: str) -> None:
    """The last blocks' items fetch weights beyond the last: drivers must neither refuse the code nor read there."""
    found: Driver = driver(platform)
    data = te.placeholder((64,), name="data")
    copy = te.compute((64,), lambda i: data[i] + 1.0, name="copy")
    schedule = new_schedule(te.create_prim_func([data, copy]))
    block, thread = schedule.split(schedule.get_loops(schedule.get_sblock("copy"))[0], [None, 4])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    mark(schedule, thread)

    def fetching(loop: tirx.For, index: list[tirx.PrimExpr]) -> tirx.Stmt:
        return tirx.SeqStmt([prefetch(func.params[0], [index[0] + 2**30]), loop.body])

    func = schedule.mod["main"]
    with lowering_context():
        built = tvm.tirx.build(wrap_marked_loop(func, "copy", fetching), target=found.target())
    assert "edgetune_prefetch(((__global" in built.imports[0].inspect_source("cl")
    values = np.arange(64, dtype="float32")
    out = tvm.runtime.tensor(np.zeros(64, "float32"), found.device)
    built["main"](tvm.runtime.tensor(values, found.device), out)
    np.testing.assert_array_equal(out.numpy(), values + 1)


VECTORS = "vstore8(vload8(0, a_ptr + 1), 0, b_ptr + 2);"


def test_a_processor_accesses_whole_vectors() -> None:
    found = with_whole_accesses(VECTORS, CPU)
    assert found.endswith(VECTORS)
    assert "#define vload8 edgetune_vload8" in found
    assert "vload4" not in found
    assert with_whole_accesses(KERNEL, CPU) == KERNEL
    assert with_whole_accesses(f"half x; {VECTORS}", CPU) == f"half x; {VECTORS}"


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_keeps_its_own_accesses(name: str) -> None:
    assert with_whole_accesses(VECTORS, gpu(name)) == VECTORS


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_vectors_may_begin_anywhere(platform: str, dtype: str) -> None:
    """An item's own array is written in vectors from an odd address on, and read in vectors and value by value."""
    found: Driver = driver(platform)
    data = te.placeholder((4, 33), dtype, name="data")
    own = te.compute((4, 32), lambda i, j: data[i, j + 1] + tirx.const(1, dtype), name="own")
    out = te.compute((4, 32), lambda i, j: own[i, j] + own[i, (j * 5) % 32], name="out")
    schedule = new_schedule(te.create_prim_func([data, out]))
    (group, columns), stage = schedule.get_loops(schedule.get_sblock("out")), schedule.get_sblock("own")
    group, item = schedule.split(group, [None, 2])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(item, "threadIdx.x")
    schedule.compute_at(stage, item)
    schedule.set_scope(stage, 0, "local")
    schedule.vectorize(schedule.split(schedule.get_loops(stage)[-1], [None, 8])[1])
    schedule.vectorize(schedule.split(columns, [None, 8])[1])
    with lowering_context():
        built = tvm.tirx.build(schedule.mod["main"], target=found.target())
    values = np.arange(4 * 33).reshape(4, 33).astype(dtype)
    result = tvm.runtime.tensor(np.zeros((4, 32), dtype), found.device)
    built["main"](tvm.runtime.tensor(values, found.device), result)
    held = values[:, 1:] + values.dtype.type(1)
    np.testing.assert_array_equal(result.numpy(), held + held[:, np.arange(32) * 5 % 32])
