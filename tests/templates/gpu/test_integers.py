"""Products of 8-bit integers on GPUs: exact sums by each way in which devices multiply, and code for every profile."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.target import Target

from templates.gpu.dots import held_words, packed_words
from templates.gpu.limits import gpu_limits_of
from templates.gpu.lowered import lower
from templates.gpu.opencl_text import build_options
from templates.integers import INTEGERS, Types
from templates.lowering import build
from templates.reference import reference
from templates.template import search_space
from templates.words import moved, pack_words, repeated, word_of
from templates.workloads import Conv2d, Dense
from tests.templates.cpu.integer_cpus import operands_of_extremes
from tests.templates.gpu.support import GPUS, Driver, driver, gpu
from tests.templates.integer_workloads import WORKLOADS, integer, kernels_of, right
from tests.templates.support import host_target
from tests.tuner.measure.offline.support import compilers_or_skip
from tuner.devices.opencl.control import set_build_options
from tuner.devices.opencl.opening import limits_of
from tuner.devices.profiles import all_profiles, profile_named
from tuner.measure.offline.nvrtc import Nvrtc
from tuning_db.record import Workload

# Arm's function, for drivers of other devices.
_ARM = "-Darm_dot_acc(a,b,c)=((c)+(a).x*(b).x+(a).y*(b).y+(a).z*(b).z+(a).w*(b).w)"
# By the driver, how the bytes are multiplied, and whether kernels are those of a GPU that shares local memory.
WAYS = {
    "shifts": ("pocl", "", False),
    "shifts-shared": ("pocl", "", True),
    "arm": ("pocl", "arm", False),
    "arm-shared": ("pocl", "arm", True),
    "khr-shared": ("intel", "khr", True),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[tuple[Driver, Target]]:
    """A driver, and the target of kernels that multiply in one of the ways."""
    platform, dots, shared = WAYS[request.param]
    here = driver(platform)
    limits = gpu_limits_of(here.like_nvidia()) if shared else limits_of(here.info)
    set_build_options(here.info.index, _ARM if dots == "arm" else "")
    yield here, here.target(replace(limits, dots=dots))
    set_build_options(here.info.index, "")


def _check(workload: Workload, here: Driver, target: Target, samples: int) -> None:
    for kernel in kernels_of(workload, target, samples, here.device):
        function = kernel.build()["main"]
        for kind, inputs in operands_of_extremes(workload).items():
            expected = reference(workload, inputs)
            result = kernel.call(function, inputs, expected.shape)
            assert result.dtype == Types.of(workload).out
            assert right(result, expected), (kind, dict(kernel.config.knobs))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_results_match_numpy(name: str, way: tuple[Driver, Target]) -> None:
    """Random operands of the whole range, and the largest and smallest ones."""
    _check(WORKLOADS[name], *way, 1)


LONG = {
    "dense": integer(Dense(2, 30000, 24)),  # 255 x -128 sums up to -979,200,000
    "conv1x1": integer(Conv2d(1, 4096, 3, 3, 8, (1, 1))),
    "depthwise": integer(Conv2d(1, 8, 25, 24, 8, (22, 23), groups=8)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_sums_are_exact(name: str, way: tuple[Driver, Target]) -> None:
    """Sums that float32 would round are exact."""
    inputs = operands_of_extremes(LONG[name])["255 x -128"]
    assert np.abs(reference(LONG[name], inputs)).max() > (2**23 if name == "depthwise" else 2**26)
    _check(LONG[name], *way, 0)


def test_depthwise_sums_that_float32_does_not_hold_have_no_template() -> None:
    large = integer(Conv2d(1, 8, 25, 25, 8, (24, 23), groups=8))
    assert all(search_space(large, gpu(name)) is None for name in GPUS)


def test_data_of_two_types_are_of_bytes() -> None:
    """The function takes the tensor of bytes that the network has, and reads words where they lie together."""
    for name, words in (("conv3x3", True), ("dense_rows", False), ("first_layer", False)):
        (kernel, *_) = kernels_of(WORKLOADS[name], gpu("orin"), 0)
        func = kernel.template.prim_func(kernel.workload, kernel.target, kernel.config)
        assert str(func.params[0].ty.dtype) == INTEGERS
        data = next(p for p in lower(func, kernel.target).source().split("(")[1:] if "data" in p)
        assert ("int* __restrict__ data" in data) == words


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.name)
def test_kernels_compile_for_every_profile(profile) -> None:
    compilers, target, rng = compilers_or_skip(profile), profile.target(), random.Random(profile.name)
    for name in rng.sample(sorted(WORKLOADS), 3):
        for kernel in kernels_of(WORKLOADS[name], target, 1):
            func = kernel.template.prim_func(kernel.workload, target, kernel.config)
            source = lower(func, target).source()
            for compiler in compilers:
                compiler.compile(source)


def _source(name: str, target: Target) -> str:
    (kernel, *_) = kernels_of(WORKLOADS[name], target, 0)
    return lower(kernel.template.prim_func(kernel.workload, target, kernel.config), target).source()


@pytest.mark.parametrize("name", ["conv3x3", "conv1x1", "first_layer", "dense_steps"])
def test_cuda_multiplies_four_bytes_in_an_instruction(name: str) -> None:
    """From compute capability 6.1 on."""
    for profile, has in (("jetson-nano", False), ("jetson-xavier", True), ("jetson-orin", True)):
        (compiler,) = compilers_or_skip(profile_named(profile))
        assert isinstance(compiler, Nvrtc)
        assert ("dp4a.u32.s32" in compiler.ptx(_source(name, profile_named(profile).target()))) == has


@pytest.mark.parametrize(
    ("limits", "call", "options"),
    [
        ("intel", "dot_4x8packed_us_int(", ["-cl-std=CL3.0"]),
        ("mali", "arm_dot_acc(as_char4(d", []),
        ("no_local_memory", "(w << 24) >> 24", []),
    ],
)
def test_opencl_multiplies_by_the_devices_extension(limits: str, call: str, options: list[str]) -> None:
    source = _source("conv3x3", gpu(limits))
    assert call in source
    assert build_options(source) == options


def test_depthwise_convolutions_are_in_float32() -> None:
    source = _source("depthwise", gpu("mali"))
    assert "edgetune_dot" not in source
    assert re.search(r"\bfloat\d* conv_local", source)


def test_opencl_devices_are_asked_for_their_extensions() -> None:
    info = replace(driver("pocl").info, type="gpu", version="OpenCL 3.0", extensions=("cl_khr_integer_dot_product",))
    assert limits_of(info).dots == "khr"
    assert limits_of(replace(info, version="OpenCL 2.1")).dots == ""
    both = (*info.extensions, "cl_arm_integer_dot_product_accumulate_int8")
    assert limits_of(replace(info, extensions=both)).dots == "arm"
    assert limits_of(replace(info, type="cpu")).dots == ""


def test_weights_are_packed_four_channels_to_a_word() -> None:
    weight = np.random.default_rng(0).integers(-128, 128, (2, 3, 6, 5)).astype(np.int8)
    words = pack_words(weight)
    assert (words.dtype, words.shape) == (np.int32, (2, 3, 2, 5))
    unpacked = words.view(np.int8).reshape(2, 3, 2, 5, 4).swapaxes(-1, -2).reshape(2, 3, 8, 5)
    np.testing.assert_array_equal(unpacked[:, :, :6], weight)
    assert not unpacked[:, :, 6:].any()


def test_what_sums_of_moved_data_lack_stands_behind_the_weight() -> None:
    weight = np.random.default_rng(1).integers(-128, 128, (2, 3, 1, 1, 8, 5)).astype(np.int8)
    packed = packed_words(weight, held_words(GPUS["mali"]))
    assert packed.shape == (2, 4, 1, 1, 2, 5)
    np.testing.assert_array_equal(packed[:, 3, 0, 0, 0], 128 * weight.astype(int).sum((1, 2, 3, 4)))
    assert packed_words(weight, held_words(GPUS["intel"])).shape == (2, 3, 1, 1, 2, 5)


def test_words_of_bytes() -> None:
    """The first byte is the lowest; a moved byte is less by 128."""
    data = te.placeholder((4,), name="data", dtype=INTEGERS)
    made = [word_of(lambda i: data[i]), repeated(data[1]), moved(word_of(lambda i: data[i]))]

    def chosen(i):
        return tvm.tirx.Select(i == 0, made[0], tvm.tirx.Select(i == 1, made[1], made[2]))

    out = te.compute((3,), chosen, name="out")
    function = build(te.create_prim_func([data, out]), host_target())["main"]
    values = np.array([1, 200, 128, 255], np.uint8)
    result = tvm.runtime.tensor(np.zeros(3, np.int32))
    function(tvm.runtime.tensor(values), result)
    found = result.numpy().view(np.int8).reshape(3, 4)
    np.testing.assert_array_equal(found[0].view(np.uint8), values)
    np.testing.assert_array_equal(found[1].view(np.uint8), [200] * 4)
    np.testing.assert_array_equal(found[2], values.astype(int) - 128)
