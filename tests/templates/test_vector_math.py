"""The polynomials of templates.vector_math have the errors that they state, over all of float32, and are vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.lowering import build
from templates.vector_math import with_vector_math
from tests.templates.gpu.support import PLATFORMS, driver
from tests.templates.support import host_target

Array = Callable[[np.ndarray], np.ndarray]
_LANES = 16
_STEP = 4999  # of the bit patterns that are tried, which is prime
_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-126, 2.0**-149, -(2.0**-149), 3.4e38, -3.4e38, 88.7228]

# By function: the right values in float64, and the error in units in the last place that its docstring states.
FUNCTIONS: dict[str, tuple[Array, float]] = {
    "exp": (np.exp, 1),
    "log": (np.log, 1),
    "tanh": (np.tanh, 5),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 6),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3),
}


def scheduled(name: str, count: int, dtype: str = "float32") -> tirx.PrimFunc:
    x = te.placeholder((count,), dtype, name="x")
    func = te.create_prim_func([x, te.compute((count,), lambda i: getattr(tirx, name)(x[i]), name="y")])
    schedule = Schedule(func)
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, _LANES])[1])
    return schedule.mod["main"]


@cache
def inputs() -> np.ndarray:
    """Values of every exponent and sign, many where the functions bend, and special ones."""
    everywhere = np.arange(0, 1 << 32, _STEP, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.linspace(-12, 12, 1 << 18, dtype=np.float32)
    ends = np.concatenate([np.linspace(a, b, 1 << 14, dtype=np.float32) for a, b in ((-105, -86), (87, 90), (0, 2))])
    values = np.concatenate([everywhere, near, ends, np.array(_SPECIAL, np.float32)])
    return np.resize(values, -(-values.size // _LANES) * _LANES)


def computed(name: str, x: np.ndarray) -> np.ndarray:
    result = tvm.runtime.tensor(np.zeros_like(x))
    build(scheduled(name, x.size), host_target())["main"](tvm.runtime.tensor(x), result)
    return result.numpy()


def check_errors(name: str, x: np.ndarray, result: np.ndarray, stated: float) -> None:
    """Compare results with the right ones, which they are off by at most `stated` units in the last place. Those below
    the normal range may be zero, but for exp's on a CPU."""
    function, _ = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        right = function(x.astype(np.float64))
        rounded = right.astype(np.float32)
        least = 0.0 if name == "exp" else float(np.finfo(np.float32).tiny)
        unit = np.maximum(np.spacing(np.abs(rounded)), least)
        error = np.abs(result.astype(np.float64) - right) / unit
    regular = np.isfinite(rounded) & (np.abs(rounded) >= least)
    assert error[regular].max() <= stated
    tiny = np.isfinite(rounded) & ~regular
    assert np.abs(result[tiny] - rounded[tiny]).max(initial=0) <= float(np.finfo(np.float32).tiny)
    others = ~np.isfinite(rounded)
    assert np.array_equal(result[others], rounded[others], equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_as_stated(name: str) -> None:
    x = inputs()
    check_errors(name, x, computed(name, x), FUNCTIONS[name][1])


@pytest.mark.parametrize("name", ["tanh", "erf"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_errors_are_as_stated_on_opencl(platform: str, name: str) -> None:
    found, x = driver(platform), inputs()
    schedule = Schedule(scheduled(name, x.size))
    outer, _ = schedule.get_loops(schedule.get_sblock("y"))
    schedule.bind(outer, "blockIdx.x")
    device, kernel = found.device, build(schedule.mod["main"], found.target())
    assert "tanh(" not in kernel.imports[0].inspect_source()
    assert "erf(" not in kernel.imports[0].inspect_source()
    result = tvm.runtime.tensor(np.zeros_like(x), device)
    kernel["main"](tvm.runtime.tensor(x, device), result)
    check_errors(name, x, result.numpy(), {"tanh": 6, "erf": 9}[name])


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_the_sign_of_zero_stays(name: str) -> None:
    zeros = np.tile(np.array([0.0, -0.0], np.float32), _LANES)
    assert np.array_equal(np.signbit(computed(name, zeros)), np.signbit(zeros))


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4", "cortex-a72"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_function_of_the_c_library_is_called(name: str, mcpu: str) -> None:
    triple = "aarch64-linux-gnu" if mcpu.startswith("cortex") else "x86_64-linux-gnu"
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": triple, "num-cores": 2})
    assembly = str(build(scheduled(name, 64), target).inspect_source("asm"))
    assert f"{name}f" not in assembly
    assert "expf" not in assembly
    assert "ldexp" not in assembly
    if name == "exp" and mcpu == "x86-64-v4":
        assert "vscalefps" in assembly


def test_other_types_and_targets_are_left() -> None:
    double = scheduled("exp", 64, "float64")
    assert with_vector_math(double, host_target()) is double
    single = scheduled("exp", 64)
    assert with_vector_math(single, Target("opencl")) is single
    assert with_vector_math(single, host_target()) is not single
