"""The default schedule of a GPU: never a wrong number, never work on the host."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.script import tirx as T
from tvm.target import Target

from templates import default
from templates.gpu.checks import violations
from templates.gpu.lowered import Lowered, lower
from templates.gpu.opaque import host_accesses
from templates.template import ScheduleError
from tests.templates.gpu.functions import HAND_WRITTEN, NETWORK_OPERATORS, legalised
from tests.templates.gpu.support import GPUS, PLATFORMS, driver, gpu
from tests.templates.support import host_target

NAMES = [*NETWORK_OPERATORS, *HAND_WRITTEN]


@cache
def functions(name: str) -> list[tirx.PrimFunc]:
    found = [HAND_WRITTEN[name]()] if name in HAND_WRITTEN else legalised(name)
    return [f.with_attr("global_symbol", "main") for f in found]


def _inputs(func: tirx.PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)

    def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if "int" in dtype or dtype == "bool":
            return rng.integers(0, 3, shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)

    return [values(tuple(int(s) for s in p.ty.shape), str(p.ty.dtype)) for p in func.params]


def _run(func: tirx.PrimFunc, target: Target, device: tvm.runtime.Device, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Every parameter after the call."""
    library = tvm.tirx.build(func, target=target)
    tensors = [tvm.runtime.tensor(array, device) for array in inputs]
    library["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def _lowered(func: tirx.PrimFunc, limits: str) -> Lowered:
    return lower(default.schedule(func, gpu(limits)), gpu(limits))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("platform", "limits"), list(zip(PLATFORMS, ("mali", "its own"), strict=True)))
def test_the_same_numbers_as_unscheduled(platform: str, limits: str, name: str) -> None:
    here = driver(platform)
    target = here.target(GPUS.get(limits))
    for func in functions(name):
        inputs = _inputs(func)
        expected = _run(func, host_target(), tvm.cpu(), inputs)
        got = _run(default.schedule(func, target), target, here.device, inputs)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limits", GPUS)
def test_all_work_is_in_kernels_within_the_limits(limits: str, name: str) -> None:
    for func in functions(name):
        lowered = _lowered(func, limits)
        assert violations(lowered, GPUS[limits]) == []
        assert all(kernel.name in lowered.source() for kernel in lowered.kernels)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "mean_of_images", "max_pool", "concat"])
def test_one_kernel_where_one_is_enough(name: str) -> None:
    for func in functions(name):
        assert len(_lowered(func, "mali").kernels) == 1


@pytest.mark.parametrize("name", ["softmax_channels", "conv2d", "matmul", "transpose", "average_pool", "scatter"])
def test_no_large_kernel_runs_in_one_item(name: str) -> None:
    for func in functions(name):
        assert all(kernel.items > 1 for kernel in _lowered(func, "mali").kernels)


def test_a_long_reduction_is_shared_out() -> None:
    (func,) = functions("sum_of_rows")
    (kernel,) = _lowered(func, "mali").kernels
    assert kernel.items >= 64


@pytest.mark.parametrize(("limits", "vector"), [("mali", "vstore4"), ("orin", "float4")])
def test_contiguous_loops_become_vectors(limits: str, vector: str) -> None:
    x = te.placeholder((1, 16, 32, 32), name="x")
    assert vector in _lowered(te.create_prim_func([x, topi.nn.relu(x)]), limits).source()


def test_kernels_launched_by_hand_stay_and_the_rest_joins_them() -> None:
    """A scan as topi writes it for GPUs: launches in hand-written loops, then an addition in a block of its own."""
    here = driver("pocl")
    x = te.placeholder((8, 300), name="x")
    with here.target():
        func = te.create_prim_func([x, topi.gpu.cumsum(x, 1)]).with_attr("global_symbol", "main")
    scheduled = default.schedule(func, here.target())
    assert host_accesses(func.body)
    assert not host_accesses(scheduled.body)
    inputs = _inputs(func)
    got = _run(scheduled, here.target(), here.device, inputs)
    np.testing.assert_allclose(got[-1], np.cumsum(inputs[0], 1), rtol=1e-4, atol=1e-4)


def test_calls_of_the_host_are_refused() -> None:
    @T.prim_func(s_tir=True)
    def sorts(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        T.func_attr({"tirx.noalias": True})
        with T.sblock("sort"):
            T.reads(x[0:8])
            T.writes(y[0:8])
            T.evaluate(T.tvm_call_packed("sort", x.data, y.data))

    with pytest.raises(ScheduleError, match="runs on the host"):
        default.schedule(sorts, gpu("mali"))


def test_scheduled_functions_are_left_alone() -> None:
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, topi.nn.relu(x)]).with_attr("tirx.is_scheduled", True)
    assert default.schedule(func, gpu("mali")).same_as(func)
