"""Asynchronous copies into local memory: what is generated for Nvidia, and the same schedule's numbers on a CPU.

No GPU is needed: the CUDA code is compiled only; the software pipeline, whose index arithmetic and barriers are TVM's,
runs on OpenCL drivers with ordinary copies.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import tvm
from tvm.target import Target

from templates.gpu.checks import violations
from templates.gpu.lowered import lower
from templates.lowering import lowering_context
from templates.reference import random_operands, reference, relative_error
from templates.space import Knob
from templates.template import template_named
from templates.workloads import Conv2d
from tests.templates.gpu.support import GPUS, PLATFORMS, driver, gpu, with_ordinary_copies
from tests.templates.support import Compiled
from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.devices.profiles import profile_named
from tuner.measure.offline.report import SPILL_BYTES
from tuning_db.record import Config, Workload

TEMPLATE = template_named("gpu.conv2d_direct")
SAME3 = (1, 1, 1, 1)
CONVS = {
    "3x3": Conv2d(1, 32, 14, 14, 24, (3, 3), padding=SAME3),
    "strided": Conv2d(1, 32, 15, 17, 32, (3, 3), (2, 2), SAME3),
    "1x1": Conv2d(2, 24, 13, 9, 40, (1, 1)),
    "grouped": Conv2d(1, 32, 9, 9, 64, (3, 3), padding=SAME3, groups=2),
}
PLACES = ("shared", "shared_local", "inline")
EPILOGUE = ("bias", "add", "relu")
STEP = r"cp_async_legacy(?=\w*\()|async_commit_group(?=\(\))|async_wait_group_\d(?=\(\))|__syncthreads"


def chosen(workload: Workload, target: Target, place: str, vec: int) -> Config:
    """A random asynchronous config with the input in `place` and the weights in local memory."""
    space, rng = TEMPLATE.space(workload, target), random.Random(5)
    fixed = {"pad": place, "wshared": 1, "vec": vec, "asynchronous": 1}
    valued = {knob.name: (fixed[knob.name],) if knob.name in fixed else knob.values for knob in space.knobs}
    config = replace(space, knobs=tuple(Knob(*knob) for knob in valued.items())).sample(rng, attempts=20000)
    assert config is not None
    return config


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("conv", CONVS)
def test_copies_are_committed_and_waited_for(conv: str, place: str, dtype: str) -> None:
    """Every copy into local memory is cp.async; a group is committed per turn, and waited for before the barrier."""
    workload, target = CONVS[conv].workload(EPILOGUE, dtype), gpu("orin")
    for vec in (4, 2):
        config = chosen(workload, target, place, vec)
        lowered = lower(TEMPLATE.prim_func(workload, target, config), target)
        assert violations(lowered, GPUS["orin"]) == [], dict(config.knobs)
        assert (
            max(kernel.local_bytes for kernel in lowered.kernels)
            <= TEMPLATE.space(workload, target).encode(config)["local_bytes"]
        )
        body = lowered.source().split("__launch_bounds__")[-1]
        copied = {name for name in ("pad_shared", "weight_shared") if f"{name}_ptr[" in body}
        assert copied == {"weight_shared", *(["pad_shared"] if place != "inline" else [])}
        assert not re.search(r"_shared_ptr( \+|\[)[^=;]*\)* = ", body), "an ordinary copy is left"
        steps = re.findall(STEP, body)
        once = [*["cp_async_legacy"] * len(copied), "async_commit_group"]
        turns = CONVS[conv].in_channels // CONVS[conv].groups // 4 // config["ct"]
        # of two turns the second fills a buffer that nobody has read yet
        turn = [*["__syncthreads"] * (turns > 2), *once, "async_wait_group_1", "__syncthreads"]
        assert steps == [*once, *turn, "async_wait_group_0", "__syncthreads"], dict(config.knobs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("profile", ["jetson-orin", "h100"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_compiles_where_the_architecture_has_it(dtype: str, profile: str) -> None:
    nvrtc = compiler_or_skip(profile, "nvrtc")
    workload, target = CONVS["3x3"].workload(EPILOGUE, dtype), profile_named(profile).target()
    for place in PLACES:
        config = chosen(workload, target, place, 4)
        (kernel,) = nvrtc.compile(lower(TEMPLATE.prim_func(workload, target, config), target).source()).values()
        assert kernel.spill_bytes <= SPILL_BYTES, dict(config.knobs)


@pytest.mark.parametrize("profile", ["jetson-nano", "jetson-xavier", "mali-g610"])
def test_older_architectures_are_not_offered_it(profile: str) -> None:
    space = TEMPLATE.space(CONVS["3x3"].workload(), profile_named(profile).target())
    assert "asynchronous" not in {knob.name for knob in space.knobs}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("conv", CONVS)
def test_the_pipeline_computes_right_numbers(conv: str, place: str, platform: str) -> None:
    """The CUDA schedule on an OpenCL driver: two buffers, the same barriers, ordinary copies."""
    here, workload = driver(platform), CONVS[conv].workload(EPILOGUE)
    inputs = random_operands(workload, 0)
    expected = reference(workload, inputs)
    config = chosen(workload, gpu("orin"), place, 4 if platform == "pocl" else 2)
    func = with_ordinary_copies(TEMPLATE.prim_func(workload, gpu("orin"), config), "conv_update")
    with lowering_context():
        built = tvm.tirx.build(func, target=here.like_nvidia())
    compiled = Compiled(TEMPLATE, workload, gpu("orin"), config, here.device)
    assert relative_error(compiled.call(built["main"], inputs, expected.shape), expected) < 2e-6, dict(config.knobs)
