"""Winograd in one kernel: what it needs, and where it is not offered."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from templates.gpu.limits import gpu_target
from templates.gpu.lowered import lower
from templates.gpu.winograd_group import GpuWinogradGroup
from templates.template import default_config
from templates.workloads import Conv2d
from tests.templates.gpu.support import GPUS, HOST, PLATFORMS, PROCESSOR, driver, gpu
from tests.templates.support import Compiled
from tuner.devices.opencl.opening import limits_of

TEMPLATE = GpuWinogradGroup()
CONV = Conv2d(1, 32, 30, 26, 48, (3, 3), padding=(1, 1, 1, 1))
WORKLOAD = CONV.workload(("bias", "add", "relu"))


def test_it_is_one_kernel_without_a_workspace() -> None:
    target = gpu_target(replace(PROCESSOR, local_memory_bytes=1 << 20), HOST)
    space, rng = TEMPLATE.space(WORKLOAD, target), random.Random(1)
    drawn = filter(None, (space.sample(rng) for _ in range(12)))
    for config in [*space.seed_configs(), *drawn]:
        lowered = lower(TEMPLATE.prim_func(WORKLOAD, target, config), target)
        (kernel,), tiles = lowered.kernels, config["ty"] * config["tx"]
        assert lowered.workspace_bytes == 0
        assert kernel.local_bytes == 4 * (config["m"] + 2) ** 2 * tiles * (32 + 48)
        assert kernel.local_bytes <= 7 / 8 * (1 << 20)
        assert kernel.group == (1, 1, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "knobs", [{"m": 4, "ty": 2, "tx": 7, "pi": 7}, {"m": 2, "ty": 3, "tx": 13, "pi": 3, "blocks": "inner"}]
)
@pytest.mark.parametrize("prefetch", [0, 1])
def test_groups_may_be_several_rows(platform: str, knobs: dict[str, object], prefetch: int) -> None:
    place = driver(platform)
    target = place.target(replace(limits_of(place.info), lanes=8))
    space = TEMPLATE.space(WORKLOAD, target)
    config = space.config({"ki": 1, **knobs, "prefetch": prefetch})
    assert space.why_invalid(config) is None
    assert Compiled(TEMPLATE, WORKLOAD, target, config, place.device).error() < 3e-5


@pytest.mark.parametrize("limits", GPUS)
def test_it_is_for_processors(limits: str) -> None:
    assert TEMPLATE.space(WORKLOAD, gpu(limits)) is None


def test_weights_that_no_cache_holds_are_left_to_the_other_template() -> None:
    target = gpu_target(PROCESSOR, HOST)
    assert TEMPLATE.space(Conv2d(1, 512, 14, 14, 512, (3, 3), padding=(1, 1, 1, 1)).workload(), target) is None


def test_local_memory_must_hold_a_tile() -> None:
    target = gpu_target(replace(PROCESSOR, local_memory_bytes=4096), HOST)
    assert TEMPLATE.space(WORKLOAD, target) is None


def test_it_is_what_a_processor_gets_where_nothing_was_measured() -> None:
    chosen = default_config(WORKLOAD, gpu_target(PROCESSOR, HOST))
    assert chosen is not None
    assert chosen.template == TEMPLATE.name
    wide = default_config(
        Conv2d(1, 512, 14, 14, 512, (3, 3), padding=(1, 1, 1, 1)).workload(), gpu_target(PROCESSOR, HOST)
    )
    assert wide is not None
    assert wide.template == "gpu.conv2d_direct"


@pytest.mark.parametrize("limits", GPUS)
def test_a_gpu_gets_the_direct_template_where_nothing_was_measured(limits: str) -> None:
    chosen = default_config(WORKLOAD, gpu(limits))
    assert chosen is not None
    assert chosen.template == "gpu.conv2d_direct"
