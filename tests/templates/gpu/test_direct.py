"""The GPU convolution keeps its sums in vectors, whatever is fused behind it, and allocates nothing unless it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm_ffi

from templates.gpu.lowered import Lowered, lower
from templates.template import template_named
from templates.workloads import Conv2d
from tests.templates.gpu.support import GPUS, PLATFORMS, driver, gpu
from tests.templates.support import Compiled
from tuner.devices.opencl.opening import limits_of
from tuning_db.record import Config

CONV = Conv2d(1, 16, 13, 13, 24, (3, 3), padding=(1, 1, 1, 1))
ACTIVATIONS = ("relu", "clip:0.0:6.0", "leaky_relu:0.1", "sigmoid", "silu", "tanh", "hardsigmoid:0.2:0.5", "hardswish")


def lowered(limits: str, epilogue: tuple[str, ...], **knobs: object) -> Lowered:
    template, workload, target = template_named("gpu.conv2d_direct"), CONV.workload(epilogue), gpu(limits)
    space = template.space(workload, target)
    config = space.config({"xi": 4, "kt": 6, "xt": 4, "unroll_kw": 1, **knobs})
    assert space.why_invalid(config) is None
    return lower(template.prim_func(workload, target, config), target)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sums_are_vectors_behind_every_epilogue(activation: str) -> None:
    """13 columns are no multiple of 4: what is cut off is cut off in whole vectors too."""
    source = lowered("mali", ("bias", "add", activation)).source()
    assert "float4 conv_local_ptr[4]" in source
    assert "vstore4" in source


@pytest.mark.parametrize("limits", ["orin", "mali"])
def test_only_a_padding_kernel_needs_a_workspace(limits: str) -> None:
    places = ["inline", "local", "shared", "shared_local"] if GPUS[limits].family == "nvidia" else ["inline", "local"]
    for pad in places:
        code = lowered(limits, ("bias",), pad=pad)
        assert (len(code.kernels), code.workspace_bytes) == (1, 0)
    code = lowered(limits, ("bias",), pad="kernel")
    assert len(code.kernels) == 2
    assert code.workspace_bytes == 4 * 16 * 15 * 18  # channels, rows, columns of whole tiles


@pytest.mark.sampled(3)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("knobs", [{"turns": 3}, {"ki": 3}, {"turns": 3, "yi": 2, "xt": 2}])
def test_a_processors_items_copy_their_input_once_for_all_their_channels(platform: str, knobs: dict[str, int]) -> None:
    place, template = driver(platform), template_named("gpu.conv2d_direct")
    # Three blocks of channels, however wide this machine's vectors are.
    target = place.target(replace(limits_of(place.info), lanes=8))
    workload = CONV.workload(("bias", "add", "relu"))
    space = template.space(workload, target)
    config = space.config({"xi": 4, "pad": "patch", **knobs})
    assert space.why_invalid(config) is None
    assert Compiled(template, workload, target, config, place.device).error() < 1e-5


@pytest.mark.parametrize(("in_channels", "is_whole"), [(8, True), (16, False)])
def test_a_processors_seeds_keep_a_loop_over_one_block_of_input(in_channels: int, is_whole: bool) -> None:
    target = driver("pocl").target(replace(limits_of(driver("pocl").info), lanes=8))
    space = template_named("gpu.conv2d_direct").space(Conv2d(1, in_channels, 32, 32, 32, (1, 1)).workload(), target)
    assert {config["ui"] for config in space.seed_configs()} == {4 if is_whole else 8}


def test_a_config_from_before_there_were_turns_is_the_same_kernel() -> None:
    template, workload, target = template_named("gpu.conv2d_direct"), CONV.workload(), driver("pocl").target()
    space = template.space(workload, target)
    config = space.config({"xi": 4})
    before = Config(config.template, {name: value for name, value in config.knobs.items() if name != "turns"})
    both = [template.prim_func(workload, target, c) for c in (before, config)]
    assert tvm_ffi.structural_equal(*both)
