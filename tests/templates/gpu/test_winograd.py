"""What Winograd's three kernels cost: workspaces, registers, local memory."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from templates.gpu.limits import gpu_target
from templates.gpu.lowered import lower
from templates.gpu.winograd import GpuWinograd
from templates.workloads import Conv2d
from tests.templates.gpu.support import GPUS, HOST, PLATFORMS, PROCESSOR, driver, gpu
from tests.templates.support import Compiled
from tuner.devices.opencl.opening import limits_of

TEMPLATE = GpuWinograd()
CONV = Conv2d(1, 32, 30, 26, 48, (3, 3), padding=(1, 1, 1, 1))
WORKLOAD = CONV.workload(("bias", "relu"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("limits", GPUS)
def test_workspaces_hold_the_transformed_tiles_and_no_more(limits: str) -> None:
    space = TEMPLATE.space(WORKLOAD, gpu(limits))
    for config in space.seed_configs():
        lowered = lower(TEMPLATE.prim_func(WORKLOAD, gpu(limits), config), gpu(limits))
        m = config["m"]
        tiles_y, tiles_x = -(-30 // m), -(-26 // m)
        group = config["pt"] * config["pi"]
        covered = -(-tiles_y * tiles_x // group) * group
        expected = 4 * (m + 2) ** 2 * covered * (32 + 48)  # the padded input shares the products' workspace
        assert lowered.workspace_bytes == expected, dict(config.knobs)
        assert len(lowered.kernels) == (4 if config["pad"] == "kernel" else 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("limits", GPUS)
def test_transforms_hold_two_tiles_in_registers(limits: str) -> None:
    """The patch of the input and its first pass: indices over images and tiles must not widen them."""
    space = TEMPLATE.space(WORKLOAD, gpu(limits))
    for config in space.seed_configs():
        lowered = lower(TEMPLATE.prim_func(WORKLOAD, gpu(limits), config), gpu(limits))
        tile = 4 * (config["m"] + 2) ** 2 * config["tv"]
        sums = 4 * (config["ki"] * config["pi"] * config["vec"] + config["pi"] * GPUS[limits].lanes)
        assert max(kernel.private_bytes for kernel in lowered.kernels) <= max(2 * tile, sums)


def test_weights_are_those_of_the_transform() -> None:
    """U of a kernel that copies its centre: the products of the points' weights, in the lanes of its channels."""
    conv = Conv2d(1, 4, 8, 8, 4, (3, 3), padding=(1, 1, 1, 1))
    weight = np.zeros((4, 4, 3, 3), np.float32)
    weight[2, 1, 1, 1] = 1
    space = TEMPLATE.space(conv.workload(), gpu("mali"))
    config = next(c for c in space.seed_configs() if c["m"] == 2)
    packed = TEMPLATE.pack_weight(conv.workload(), gpu("mali"), config, weight)
    assert packed.shape == (4, 4, 1, 1, 4, 4)
    centre = np.array([0, 0.5, -0.5, 0])
    np.testing.assert_array_equal(packed[:, :, 0, 0, 1, 2], np.outer(centre, centre).astype(np.float32))
    assert np.count_nonzero(packed) == 4


@pytest.mark.parametrize("limits", GPUS)
@pytest.mark.parametrize("size", [4, 5, 7])
@pytest.mark.parametrize("channels", [4, 12])
def test_the_smallest_images_have_configs_of_both_sizes(channels: int, size: int, limits: str) -> None:
    workload = Conv2d(2, 8, size, size, channels, (3, 3), padding=(1, 1, 1, 1)).workload()
    seeds = TEMPLATE.space(workload, gpu(limits)).seed_configs()
    assert {config["m"] for config in seeds} == {2, 4}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("sweeps", [1, 2, 7])
def test_a_group_fetches_every_line_of_its_next_weights(platform: str, sweeps: int) -> None:
    """An item per tile of a group: each fetches its share of the next block, none is left out."""
    place = driver(platform)
    target = place.target(replace(limits_of(place.info), lanes=8))
    space = TEMPLATE.space(WORKLOAD, target)
    config = space.config({"m": 4, "ki": 2, "pi": 4, "pt": sweeps, "prefetch": 1})
    assert space.why_invalid(config) is None
    compiled = Compiled(TEMPLATE, WORKLOAD, target, config, place.device)
    lines = 8 * 8 // 16  # of a block of weights
    source = lower(TEMPLATE.prim_func(WORKLOAD, target, config), target).source()
    calls = re.findall(r"edgetune_prefetch\(\(\(__global", source)
    assert len(calls) == 2 * -(-lines // sweeps)
    assert compiled.error() < 3e-5


@pytest.mark.parametrize("limits", GPUS)
def test_gpus_do_not_prefetch(limits: str) -> None:
    assert "prefetch" not in {knob.name for knob in TEMPLATE.space(WORKLOAD, gpu(limits)).knobs}


@pytest.mark.parametrize(("channels", "size", "m"), [(64, 56, 4), (128, 28, 4), (256, 14, 2), (512, 7, 2)])
def test_a_processors_first_config_weighs_multiplications_against_weights(channels: int, size: int, m: int) -> None:
    """The larger tile needs fewer multiplications and more weights, which come from memory."""
    target = gpu_target(replace(PROCESSOR, lanes=16), HOST)
    conv = Conv2d(1, channels, size, size, channels, (3, 3), padding=(1, 1, 1, 1))
    first = TEMPLATE.space(conv.workload(), target).seed_configs()[0]
    assert (first["m"], first["prefetch"]) == (m, 1)
    if channels == 512:
        assert first["pi"] == (size + 1) ** 2 // m**2  # all tiles in registers: every weight is read once
