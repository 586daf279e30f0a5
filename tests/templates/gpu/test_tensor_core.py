"""Convolutions on tensor cores. No GPU is needed: CUDA code is compiled only; what it computes is checked by the very
same schedule without the operations on fragments, which an OpenCL driver runs."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from templates.blocking import blocking
from templates.gpu.checks import violations
from templates.gpu.lowered import lower
from templates.gpu.tensor_core_kernels import TensorCoreProblem, block_of, schedule_tensor_core, tensor_core_compute
from templates.lowering import lowering_context
from templates.reference import Operands, random_operands, reference, relative_error
from templates.space import Knob, Space
from templates.template import search_space, template_named
from templates.words import in_dots
from templates.workloads import Conv2d, conv_of
from tests.templates.gpu.support import GPUS, driver, gpu, with_ordinary_copies
from tests.templates.support import Compiled
from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.devices.profiles import profile_named
from tuner.measure.offline.nvrtc import Nvrtc
from tuner.measure.offline.report import SPILL_BYTES
from tuning_db.record import Config, Workload

SAME3 = (1, 1, 1, 1)
CONVS = {
    "3x3": Conv2d(1, 32, 9, 7, 48, (3, 3), padding=SAME3),
    "1x1_batch": Conv2d(3, 64, 5, 5, 32, (1, 1)),
    "strided": Conv2d(1, 16, 15, 17, 32, (3, 3), (2, 2), SAME3),
    "dilated": Conv2d(1, 24, 10, 10, 20, (3, 3), padding=(2, 1, 2, 0), dilation=(2, 2)),
    "grouped": Conv2d(1, 64, 6, 6, 64, (3, 3), padding=SAME3, groups=2),
}
EPILOGUE = ("bias", "add", "relu")
NAMES = {"float16": "gpu.conv2d_tensor_core", "float32": "gpu.conv2d_tensor_core_tf32"}
INSTRUCTIONS = {
    "float16": r"wmma\.mma\.sync\.aligned\.row\.row\.m16n16k16\.f32\.f32",
    "float32": r"wmma\.mma\.sync\.aligned\.row\.row\.m16n16k8\.f32\.tf32\.tf32\.f32",
}
dtypes = pytest.mark.parametrize("dtype", NAMES)


def with_knob(space: Space, name: str, value: object) -> Space:
    """The part of a space with one value of a knob."""
    return replace(space, knobs=tuple(Knob(name, (value,)) if knob.name == name else knob for knob in space.knobs))


def run_without_fragments(
    workload: Workload, config: Config, inputs: Operands | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Result and reference, on Intel's OpenCL driver (it has half precision)."""
    here, target = driver("intel"), gpu("orin")
    conv = conv_of(workload)
    problem = TensorCoreProblem(conv, blocking(conv, block_of(workload.dtype)), workload.dtype, GPUS["orin"])
    computation = tensor_core_compute(problem, workload.epilogue, config.knobs)
    func = schedule_tensor_core(problem, computation, config.knobs, tensorize=False)
    if config.knobs.get("asynchronous"):
        func = with_ordinary_copies(func, "conv_update")
    if problem.words:
        func = in_dots(func, data=True)
    with lowering_context():
        built = tvm.tirx.build(func, target=here.like_nvidia())
    inputs = inputs or random_operands(workload, 0)
    expected = reference(workload, inputs)
    compiled = Compiled(template_named(config.template), workload, target, config, here.device)
    return compiled.call(built["main"], inputs, expected.shape), expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("asynchronous", [0, 1])
@pytest.mark.parametrize("conv", CONVS)
def test_the_only_rounding_of_half_precision_is_the_results(conv: str, asynchronous: int) -> None:
    workload = CONVS[conv].workload(EPILOGUE, "float16")
    space = with_knob(template_named(NAMES["float16"]).space(workload, gpu("orin")), "asynchronous", asynchronous)
    config = space.sample(random.Random(len(conv) + asynchronous))
    result, expected = run_without_fragments(workload, config)
    rounded = relative_error(expected.astype(np.float16).astype(np.float64), expected)
    assert relative_error(result, expected) <= 1.01 * rounded, dict(config.knobs)


@pytest.mark.parametrize("conv", ["3x3", "dilated"])
def test_tf32_keeps_to_its_tolerance(conv: str) -> None:
    """Half precision stands for tf32: it has as many bits of mantissa, and these operands its exponents."""
    template, workload = template_named(NAMES["float32"]), CONVS[conv].workload(EPILOGUE)
    config = template.space(workload, gpu("orin")).sample(random.Random(2))
    result, expected = run_without_fragments(workload, config)
    assert 1e-5 < relative_error(result, expected) < template.tolerance, dict(config.knobs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("profile", "dtype"),
    [("jetson-xavier", "float16"), ("jetson-orin", "float16"), ("jetson-orin", "float32"), ("h100", "float32")],
)
def test_it_compiles_to_instructions_of_the_tensor_core(profile: str, dtype: str) -> None:
    nvrtc = compiler_or_skip(profile, "nvrtc")
    assert isinstance(nvrtc, Nvrtc)
    target, limits = profile_named(profile).target(), profile_named(profile).limits
    template, workload = template_named(NAMES[dtype]), CONVS["3x3"].workload(EPILOGUE, dtype)
    seeds = template.space(workload, target).seed_configs()
    assert seeds
    for config in (seeds[0], seeds[-1]):
        lowered = lower(template.prim_func(workload, target, config), target)
        assert violations(lowered, limits) == []
        source = lowered.source()
        (kernel,) = nvrtc.compile(source).values()
        assert kernel.spill_bytes <= SPILL_BYTES, dict(config.knobs)
        instructions = nvrtc.ptx(source)
        assert re.search(INSTRUCTIONS[dtype], instructions)
        assert ("cp.async" in instructions) == bool(config.knobs.get("asynchronous"))
        assert ("cvt.rna.tf32.f32" in instructions) == (dtype == "float32")


@pytest.mark.sampled(4)
@dtypes
@pytest.mark.parametrize("asynchronous", [0, 1])
def test_barriers_stand_between_sums_and_epilogue(dtype: str, asynchronous: int) -> None:
    """The sums have memory of their own, which no warp still reads operands from."""
    template, workload = template_named(NAMES[dtype]), CONVS["3x3"].workload(EPILOGUE, dtype)
    space, rng = template.space(workload, gpu("orin")), random.Random(1)
    for _ in range(4):
        config = with_knob(space, "asynchronous", asynchronous).sample(rng)
        lowered = lower(template.prim_func(workload, gpu("orin"), config), gpu("orin"))
        body = lowered.source().split("__launch_bounds__")[-1]
        stores = re.findall(r"store_matrix_sync\(\(&\((\w+)\[", body)
        operands = set(re.findall(r"load_matrix_sync\(\w+\[\d+\], \(&\((\w+)\[", body))
        assert len(operands) == 2
        assert not operands & set(stores), dict(config.knobs)
        assert body[body.rindex("store_matrix_sync(") :].count("__syncthreads") == 1


@pytest.mark.parametrize(
    ("profile", "dtype"), [("jetson-nano", "float16"), ("jetson-xavier", "float32"), ("mali-g610", "float16")]
)
def test_devices_without_such_cores_are_not_offered_it(profile: str, dtype: str) -> None:
    workload = CONVS["3x3"].workload((), dtype)
    assert template_named(NAMES[dtype]).space(workload, profile_named(profile).target()) is None


def test_tf32_must_be_asked_for_by_name() -> None:
    workload, name = CONVS["3x3"].workload(), NAMES["float32"]
    assert name not in {space.template for space in search_space(workload, gpu("orin")).spaces}
    (space,) = search_space(workload, gpu("orin"), [name]).spaces
    assert space.template == name
    assert search_space(workload, gpu("orin"), [name], exact=True) is None


@dtypes
@pytest.mark.parametrize("conv", CONVS)
def test_tiles_of_local_memory_are_what_the_space_says(conv: str, dtype: str) -> None:
    template, workload = template_named(NAMES[dtype]), CONVS[conv].workload(EPILOGUE, dtype)
    space = template.space(workload, gpu("orin"))
    config = space.sample(random.Random(7))
    (kernel,) = lower(template.prim_func(workload, gpu("orin"), config), gpu("orin")).kernels
    assert kernel.local_bytes == space.encode(config)["local_bytes"]
    assert kernel.items == space.encode(config)["group_items"]
