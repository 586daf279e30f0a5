"""The spatial-pack convolution: right numbers on real drivers with Mali's limits, and code that any OpenCL has."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from templates.gpu.limits import GpuLimits, gpu_target
from templates.template import PLAIN, Layouts, template_named
from templates.workloads import Conv2d
from tests.templates.gpu.support import HOST, driver, gpu
from tests.templates.support import Compiled
from tests.templates.workloads import WORKLOADS
from tests.tuner.measure.offline.support import compiler_or_skip
from tuning_db.record import Config, Workload

TEMPLATE = template_named("mali.conv2d_spatial_pack")
NAMES = [name for name, workload in WORKLOADS.items() if workload.op == "conv2d"]
LIMITS = GpuLimits("opencl", "mali", 256, 0, 4)
MALI = gpu_target(LIMITS, HOST)
LAYER = Conv2d(1, 32, 28, 28, 32, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"))
# Drivers for CPUs take seconds for longer bodies.
SHORT_BODY = 64


def _configs(workload: Workload, count: int, **knobs: object) -> list[Config]:
    space = TEMPLATE.space(workload, MALI)
    assert space is not None
    assert space.features is not None
    rng = random.Random(5)
    drawn = [c for c in (space.sample(rng) for _ in range(400)) if c is not None]
    drawn = [c for c in drawn if all(c[name] == value for name, value in knobs.items())]
    return [c for c in drawn if space.features(c.knobs)["body_fmas"] <= SHORT_BODY][:count]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("platform", ["pocl", "intel"])
@pytest.mark.parametrize("name", NAMES)
def test_results_match_float64(name: str, platform: str) -> None:
    device = driver(platform).device
    configs = _configs(WORKLOADS[name], 2)
    assert configs
    for config in configs:
        assert Compiled(TEMPLATE, WORKLOADS[name], MALI, config, device).error() < 2e-6, dict(config.knobs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pad", ["local", "inline", "kernel"])
@pytest.mark.parametrize("vector", ["channels", "columns"])
def test_every_way_of_reading_the_input(pad: str, vector: str) -> None:
    device = driver("pocl").device
    workload = Conv2d(2, 6, 10, 12, 16, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("bias", "add", "relu"))
    configs = _configs(workload, 2, pad=pad, vector=vector)
    assert bool(configs) == ((pad, vector) != ("inline", "columns")), "only whole vectors are padded"
    for config in configs:
        assert Compiled(TEMPLATE, workload, MALI, config, device).error() < 2e-6, dict(config.knobs)


def test_a_wide_cpu_gets_wide_vectors() -> None:
    device = driver("pocl").device
    target = gpu_target(GpuLimits("opencl", "cpu", 4096, 32768, 16), HOST)
    workload = WORKLOADS["conv1x1"]
    config = TEMPLATE.space(workload, target).seed_configs()[0]
    assert config["vec"] == 16
    assert Compiled(TEMPLATE, workload, target, config, device).error() < 2e-6


@pytest.mark.parametrize("vector", ["channels", "columns"])
def test_sums_are_vectors_and_nothing_is_local_memory(vector: str) -> None:
    clang = compiler_or_skip("mali-t860", "clang")
    space = TEMPLATE.space(LAYER, MALI)
    seeds = [c for c in space.seed_configs() if c["vector"] == vector]
    assert seeds
    for config in seeds:
        source = Compiled(TEMPLATE, LAYER, MALI, config).build().imports[0].inspect_source()
        assert "  float4 conv_local_ptr[" in source
        assert "__local" not in source
        assert "barrier(" not in source
        clang.compile(source)


def test_nothing_is_converted_around_it() -> None:
    assert TEMPLATE.layouts(LAYER, MALI) == Layouts(PLAIN, PLAIN)


def test_configs_keep_the_devices_limits() -> None:
    small = replace(LIMITS, max_threads=16)
    space = TEMPLATE.space(LAYER, gpu_target(small, HOST))
    rng = random.Random(1)
    configs = [c for c in (space.sample(rng) for _ in range(50)) if c is not None]
    assert configs
    assert max(c["kt"] * c["yt"] * c["xt"] for c in configs) <= 16
    assert max(c["ki"] * c["vec"] * c["yi"] * c["xi"] for c in configs) <= small.sums
    too_large = space.config({**space.seed_configs()[0].knobs, "kt": 2, "yt": 2, "xt": 14})
    assert space.why_invalid(too_large) == "the work-group is larger than the device's"


@pytest.mark.parametrize("name", ["intel", "orin"])
def test_is_not_offered_where_another_template_is_made_for_it(name: str) -> None:
    assert TEMPLATE.space(LAYER, gpu(name)) is None
