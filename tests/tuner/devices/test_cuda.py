"""What NVRTC makes of CUDA source, for GPUs that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm import te, tirx
from tvm.s_tir import Schedule

from templates.gpu.lowered import lower
from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.devices.cuda import Nvrtc
from tuner.devices.profiles import profile_named


@pytest.fixture
def orin() -> Nvrtc:
    compiler_or_skip("jetson-orin", "nvrtc")
    return Nvrtc("sm_87")


def instructions(compiler: Nvrtc, expression: str) -> str:
    kernel = 'extern "C" __global__ void k(float* a, const float* b) { float x = b[0], y = b[1]; a[0] = %s; }'
    return compiler.ptx(kernel % expression)


def test_arithmetic_is_not_fast_and_wrong(orin: Nvrtc) -> None:
    assert "div.rn.f32" in instructions(orin, "x / y")
    assert "sqrt.rn.f32" in instructions(orin, "sqrtf(x)")
    assert "tanh.approx" not in instructions(orin, "tanhf(x)")
    assert "sin.approx" not in instructions(orin, "sinf(x)")
    assert ".ftz" not in instructions(orin, "x == 0.0f ? y : x + y")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_what_tvm_writes_compiles(orin: Nvrtc, dtype: str) -> None:
    """Infinities and the names of every type are in headers that TVM asks for."""
    data = te.placeholder((64,), name="data", dtype=dtype)
    least = tirx.min_value(dtype) if dtype in ("float32", "float16", "int64") else tirx.const(0, dtype)
    limit = tirx.infinity(dtype) if dtype in ("float32", "float16") else least
    out = te.compute((64,), lambda i: tirx.if_then_else(data[i] == limit, least, data[i]), name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    schedule.bind(schedule.get_loops(schedule.get_sblock("out"))[0], "threadIdx.x")
    source = lower(schedule.mod["main"], profile_named("jetson-orin").target()).source()
    binary, _ = orin.compile(source)
    assert binary.startswith(b"\x7fELF")
    assert b"main_kernel" in binary


def test_a_library_without_its_headers_is_passed_over(
    orin: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.99").touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert Nvrtc("sm_87").ptx("") == orin.ptx("")
