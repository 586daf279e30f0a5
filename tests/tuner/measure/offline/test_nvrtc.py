"""CUDA for boards and GPUs that are not here."""

from __future__ import annotations

import pytest
from tvm import te
from tvm.s_tir import Schedule

from templates.gpu.lowered import lower
from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.devices.profiles import profile_named
from tuner.errors import BadInput, CompileError
from tuner.measure.offline.nvrtc import Nvrtc, resources

PROFILES = ("jetson-nano", "jetson-xavier", "jetson-orin", "h100")
LOG = """nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'main_kernel' for 'sm_53'
ptxas info    : Function properties for main_kernel
ptxas         .     40 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 95 registers, used 1 barriers, 40 bytes cumulative stack size, 18432 bytes smem, 352 bytes cmem[0]
ptxas info    : Compile time = 550.174 ms
ptxas info    : Compiling entry function 'main_kernel_1' for 'sm_53'
ptxas info    : Function properties for main_kernel_1
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, 336 bytes cmem[0]
"""


def half_to_float(vector: int):
    """Half-precision vectors in, an intrinsic of each, single precision out: all of TVM's CUDA headers."""
    data = te.placeholder((1024,), name="data", dtype="float16")
    out = te.compute((1024,), lambda i: te.exp(data[i] + data[i]).astype("float32") * 0.5, name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    group, item, lane = schedule.split(schedule.get_loops(schedule.get_sblock("out"))[0], [None, 32, vector])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(item, "threadIdx.x")
    schedule.vectorize(lane)
    return schedule.mod["main"]


def test_ptxas_words_are_read():
    found = resources(LOG, 1000)
    first, second = found["main_kernel"], found["main_kernel_1"]
    assert (first.registers, first.spill_bytes, first.private_bytes, first.local_bytes) == (95, 24, 40, 18432)
    assert (second.registers, second.spill_bytes, second.private_bytes, second.local_bytes) == (16, 0, 0, 0)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("vector", [1, 2, 4])
def test_tvms_source_compiles_for_every_architecture(profile, vector):
    source = lower(half_to_float(vector), profile_named(profile).target()).source()
    (kernel,) = compiler_or_skip(profile, "nvrtc").compile(source).values()
    assert 0 < kernel.registers <= 255
    assert kernel.binary_bytes > 0
    assert (kernel.spill_bytes, kernel.local_bytes) == (0, 0)


def test_shared_memory_and_spills_are_reported():
    spilling = """extern "C" __global__ void __launch_bounds__(1024) k(float* a, int n) {
      __shared__ float t[256]; t[threadIdx.x & 255] = a[threadIdx.x]; __syncthreads();
      float x[100];
      #pragma unroll
      for (int i = 0; i < 100; i++) x[i] = a[i * 1024 + threadIdx.x];
      for (int k = 0; k < n; k++) {
        #pragma unroll
        for (int i = 0; i < 100; i++) x[i] = x[i] * t[(k + i) & 255] + x[(i + 7) % 100];
      }
      #pragma unroll
      for (int i = 0; i < 100; i++) a[i * 1024 + threadIdx.x] = x[i];
    }"""
    kernel = compiler_or_skip("jetson-orin", "nvrtc").compile(spilling)["k"]
    assert kernel.local_bytes == 1024
    assert kernel.registers == 64
    assert min(kernel.spill_bytes, kernel.private_bytes) > 0


def test_an_error_is_one_line():
    with pytest.raises(CompileError, match=r'nvrtc: kernel.cu\(1\): error: identifier "foo" is undefined'):
        compiler_or_skip("jetson-orin", "nvrtc").compile('extern "C" __global__ void k() { foo(1); }')


def test_an_architecture_that_no_library_knows_is_one_line():
    compiler_or_skip("jetson-orin", "nvrtc")
    with pytest.raises(BadInput, match=r"no NVRTC here compiles for sm_20 \(libnvrtc.*\): pip install"):
        Nvrtc("sm_20")


def test_a_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.meta_path", [])
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tuner.devices.cuda.nvrtc._TOOLKIT", "/nowhere")
    with pytest.raises(BadInput, match=r"NVRTC is not installed.*sm_87: pip install 'edgetune\[cuda-offline\]'"):
        Nvrtc("sm_87")
