"""Products of pairs of computed matrices in half precision, and on tensor cores. CUDA code is compiled only; what it
computes is checked by the same schedule without the operations on fragments, which an OpenCL driver runs."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm.target import Target

from templates.batch_matmul import OPERATOR, BatchMatmul
from templates.gpu.batch_matmul_tensor_core import matmul_compute, problem_of
from templates.gpu.checks import violations
from templates.gpu.limits import gpu_limits_of, gpu_target
from templates.gpu.lowered import lower
from templates.gpu.tensor_core_kernels import schedule_tensor_core
from templates.lowering import lowering_context
from templates.reference import relative_error
from templates.space import Space
from templates.template import search_space, template_named
from tests.templates.gpu.support import GPUS, HOST, driver, gpu, with_ordinary_copies
from tests.templates.gpu.test_tensor_core import INSTRUCTIONS, with_knob
from tests.vision_ops.support import Compiled, Place
from tuner.devices.profiles import cuda_limits, profile_named
from tuner.errors import BadInput
from tuner.measure.offline.nvrtc import Nvrtc
from tuner.measure.offline.report import SPILL_BYTES
from tuning_db.record import Config, Workload

PRODUCTS = {
    "whole": BatchMatmul(2, 32, 64, 48),
    "odd": BatchMatmul(3, 29, 37, 53),
    "odd, transposed": BatchMatmul(2, 50, 40, 21, transposed=True),
    "filled up by whole blocks": BatchMatmul(3, 20, 197, 200),
}
NAMES = {"float16": "gpu.batch_matmul_tensor_core", "float32": "gpu.batch_matmul_tensor_core_tf32"}
dtypes = pytest.mark.parametrize("dtype", NAMES)


def space_of(workload: Workload, target: Target) -> Space:
    space = template_named(NAMES[workload.dtype]).space(workload, target)
    assert space is not None
    return space


def without_fragments(workload: Workload, config: Config, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The result on Intel's OpenCL driver, which has half precision."""
    here, product = driver("intel"), BatchMatmul.of(workload)
    problem = problem_of(product, workload.dtype, GPUS["orin"])
    computation = matmul_compute(product, problem, config.knobs)
    func = schedule_tensor_core(problem, computation, config.knobs, tensorize=False)
    if config.knobs.get("asynchronous"):
        func = with_ordinary_copies(func, "conv_update")
    target = here.like_nvidia()
    with lowering_context():
        built = tvm.tirx.build(func, target=target)
    (result,) = Compiled(workload, Place(target, here.device), built["main"])(*inputs)
    return result


def rounding(expected: np.ndarray) -> float:
    return relative_error(expected.astype(np.float16).astype(np.float64), expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_only_rounding_of_half_precision_is_the_results(name: str) -> None:
    workload = PRODUCTS[name].workload("float16")
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(1))
    (expected,) = OPERATOR.reference(workload, inputs)
    space = space_of(workload, gpu("orin"))
    for config in (space.seed_configs()[0], space.sample(random.Random(len(name)))):
        assert config is not None
        result = without_fragments(workload, config, inputs)
        assert relative_error(result, expected) <= 1.01 * rounding(expected), dict(config.knobs)


@pytest.mark.parametrize("name", ["odd", "odd, transposed"])
def test_tf32_keeps_to_its_tolerance(name: str) -> None:
    """Half precision stands for tf32: it has as many bits of mantissa, and these operands its exponents."""
    workload = PRODUCTS[name].workload()
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(2))
    (expected,) = OPERATOR.reference(workload, inputs)
    config = space_of(workload, gpu("orin")).sample(random.Random(3))
    assert config is not None
    tolerance = template_named(NAMES["float32"]).tolerance
    assert tolerance is not None
    assert 1e-5 < relative_error(without_fragments(workload, config, inputs), expected) < tolerance


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        *((arch, "float16") for arch in ("sm_72", "sm_87", "sm_89", "sm_90a", "sm_100")),
        *((arch, "float32") for arch in ("sm_87", "sm_89", "sm_90a", "sm_100")),
    ],
)
def test_it_compiles_to_instructions_of_the_tensor_core(arch: str, dtype: str) -> None:
    try:
        nvrtc = Nvrtc(arch)
    except BadInput as missing:
        pytest.skip(str(missing))
    target = gpu_target(cuda_limits(arch), HOST)
    for product in (PRODUCTS["whole"], PRODUCTS["odd, transposed"]):
        workload = product.workload(dtype)
        space = space_of(workload, target)
        assert {space.config(seed) for seed in space.seeds} == set(space.seed_configs()) != set()
        config = space.seed_configs()[0]
        lowered = lower(template_named(NAMES[dtype]).prim_func(workload, target, config), target)
        assert violations(lowered, gpu_limits_of(target)) == []
        source = lowered.source()
        (kernel,) = nvrtc.compile(source).values()
        assert kernel.spill_bytes is not None
        assert kernel.spill_bytes <= SPILL_BYTES, dict(config.knobs)
        assert kernel.local_bytes is not None
        instructions = nvrtc.ptx(source)
        assert re.search(INSTRUCTIONS[dtype], instructions)
        assert ("cp.async" in instructions) == bool(config.knobs.get("asynchronous"))
        assert ("cvt.rna.tf32.f32" in instructions) == (dtype == "float32")


@dtypes
def test_copies_are_asynchronous_where_they_are_of_whole_vectors(dtype: str) -> None:
    offered = {
        name: "asynchronous" in {knob.name for knob in space_of(product.workload(dtype), gpu("orin")).knobs}
        for name, product in PRODUCTS.items()
    }
    assert offered == {"whole": True, "odd": False, "odd, transposed": False, "filled up by whole blocks": False}
    space = with_knob(space_of(PRODUCTS["whole"].workload(dtype), gpu("orin")), "asynchronous", 1)
    assert space.sample(random.Random(4)) is not None


@dtypes
@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles_of_local_memory_are_what_the_space_says(name: str, dtype: str) -> None:
    workload, target = PRODUCTS[name].workload(dtype), gpu("orin")
    space = space_of(workload, target)
    config = space.sample(random.Random(7))
    assert config is not None
    (kernel,) = lower(template_named(NAMES[dtype]).prim_func(workload, target, config), target).kernels
    assert kernel.local_bytes == space.encode(config)["local_bytes"]
    assert kernel.items == space.encode(config)["group_items"]


@pytest.mark.parametrize(
    ("profile", "dtype"), [("jetson-nano", "float16"), ("jetson-xavier", "float32"), ("mali-g610", "float16")]
)
def test_devices_without_such_cores_are_not_offered_it(profile: str, dtype: str) -> None:
    workload = PRODUCTS["whole"].workload(dtype)
    assert template_named(NAMES[dtype]).space(workload, profile_named(profile).target()) is None


def test_small_matrices_are_not_filled_up() -> None:
    workload = BatchMatmul(8, 64, 5, 64).workload("float16")
    assert template_named(NAMES["float16"]).space(workload, gpu("orin")) is None


def test_tf32_must_be_asked_for_by_name() -> None:
    workload, name = PRODUCTS["whole"].workload(), NAMES["float32"]
    plain, asked = search_space(workload, gpu("orin")), search_space(workload, gpu("orin"), [name])
    assert plain is not None
    assert asked is not None
    assert name not in {space.template for space in plain.spaces}
    assert [space.template for space in asked.spaces] == [name]
    assert search_space(workload, gpu("orin"), [name], exact=True) is None


@pytest.mark.parametrize("name", PRODUCTS)
def test_register_tiles_round_only_the_result_to_halves(name: str) -> None:
    here, workload = driver("intel"), PRODUCTS[name].workload("float16")
    target, template = here.like_nvidia(), template_named("gpu.batch_matmul")
    space = template.space(workload, target)
    assert space is not None
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(5))
    (expected,) = OPERATOR.reference(workload, inputs)
    compiled = Compiled.of(workload, space.seed_configs()[0], Place(target, here.device))
    assert compiled.error(*inputs) <= 1.01 * rounding(expected)
