"""Attention with a running maximum, in one kernel: run by drivers for CPUs with a GPU's limits, compiled for GPUs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tvm.target import Target

from templates.attention import OPERATOR, Attention, Operand
from templates.gpu.checks import violations
from templates.gpu.limits import gpu_limits_of
from templates.gpu.lowered import lower
from templates.reference import relative_error
from templates.space import Space
from templates.template import default_config, search_space, template_named
from tests.templates.attentions import ALONG_CHANNELS_MASKED, ONE_PROJECTION
from tests.templates.gpu.support import GPUS, PLATFORMS, driver, gpu
from tests.tuner.measure.offline.support import compilers_or_skip
from tests.vision_ops.support import Compiled, Place
from tuner.devices.profiles import all_profiles, profile_named
from tuner.measure.offline.report import SPILL_BYTES
from tuning_db.record import Config, Workload

NAME = "gpu.attention_running"
TEMPLATE = template_named(NAME)
PROFILES = [profile.name for profile in all_profiles()]
VIT = Attention(1, 12, 197, 197, 64, 64, scale=0.125)
SHAPES = {
    "odd": Attention(2, 3, 29, 37, 20, 23, scale=0.2),
    "one query": Attention(1, 2, 1, 75, 8, 12),
    "few keys": Attention(1, 2, 50, 3, 16, 16),
    "one projection": ONE_PROJECTION,
    "along channels, masked": ALONG_CHANNELS_MASKED,
}
MASKED = Attention(2, 2, 21, 70, 12, 16, scale=0.5, mask=Operand(21 * 70, 0, 0, 0, 70, 1))
TILE = {"ri": 2, "rt": 4, "nb": 1, "vec": 4, "ot": 4, "ki": 4}  # 8 queries, 16 keys at a time


def place(platform: str) -> Place:
    """A driver whose target has a GPU's limits."""
    here = driver(platform)
    return Place(here.like_nvidia(), here.device)


def space_of(workload: Workload, target: Target) -> Space:
    space = TEMPLATE.space(workload, target)
    assert space is not None
    return space


def configs_of(workload: Workload, target: Target, seed: int) -> list[Config]:
    """The first seed and a sampled config."""
    space = space_of(workload, target)
    sampled = space.sample(random.Random(seed))
    assert sampled is not None
    return [space.seed_configs()[0], sampled]


def attended(workload: Workload, inputs: Sequence[np.ndarray], config: Config | None = None) -> np.ndarray:
    here = place("pocl")
    config = config or space_of(workload, here.target).config(TILE)
    (out,) = Compiled.of(workload, config, here)(*inputs)
    return out


def masked_inputs(mask: np.ndarray, *, larger: float = 1.0) -> list[np.ndarray]:
    """Inputs of `MASKED`, whose queries are `larger` than random ones."""
    query, key, value, _ = OPERATOR.random_inputs(MASKED.workload(), np.random.default_rng(2))
    return [query * np.float32(larger), key, value, mask.astype(np.float32).reshape(-1)]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", SHAPES)
def test_results_match_float64(platform: str, name: str) -> None:
    workload, here = SHAPES[name].workload(), place(platform)
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(3))
    for config in configs_of(workload, here.target, len(name)):
        assert Compiled.of(workload, config, here).error(*inputs) <= 2e-6, dict(config.knobs)


@pytest.mark.parametrize("name", ["odd", "along channels, masked"])
def test_the_only_rounding_of_halves_is_the_results(name: str) -> None:
    workload, here = SHAPES[name].workload("float16"), place("intel")
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(4))
    (expected,) = OPERATOR.reference(workload, inputs)
    rounded = relative_error(expected.astype(np.float16).astype(np.float64), expected)
    for config in configs_of(workload, here.target, len(name)):
        compiled = Compiled.of(workload, config, here)
        assert compiled(*inputs)[0].dtype == np.float16
        assert compiled.error(*inputs) <= 1.01 * rounded, dict(config.knobs)


@pytest.mark.parametrize("template", ["gpu.attention", "gpu.attention_rows"])
def test_so_it_is_in_the_other_forms(template: str) -> None:
    here = driver("intel")
    workload, target = SHAPES["one projection"].workload("float16"), here.target()
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(6))
    (expected,) = OPERATOR.reference(workload, inputs)
    rounded = relative_error(expected.astype(np.float16).astype(np.float64), expected)
    space = template_named(template).space(workload, target)
    assert space is not None
    compiled = Compiled.of(workload, space.seed_configs()[0], Place(target, here.device))
    assert compiled.error(*inputs) <= 1.01 * rounded


def test_more_keys_than_fit_a_group() -> None:
    """The scores of a tile of queries are more than local memory, and no kernel keeps any in the device's."""
    view, here = Attention(1, 2, 24, 4100, 8, 16, scale=0.5), place("pocl")
    workload = view.workload()
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(5))
    config = space_of(workload, here.target).config(TILE)
    assert 4 * TILE["ri"] * TILE["rt"] * view.columns > gpu_limits_of(here.target).local_memory_bytes
    assert Compiled.of(workload, config, here).error(*inputs) <= 2e-6
    lowered = lower(TEMPLATE.prim_func(workload, here.target, config), here.target)
    assert (len(lowered.kernels), lowered.workspace_bytes) == (1, 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_far_from_zero(sign: float) -> None:
    """They lie around 1e4 or -1e4, where float32 numbers are a thousandth apart, and the maximum moves by hundreds from
    one tile of keys to the next."""
    columns = np.linspace(9e3, 1.1e4, 70)
    inputs = masked_inputs(sign * np.stack([np.roll(columns, 5 * row) for row in range(21)]))
    (expected,) = OPERATOR.reference(MASKED.workload(), inputs)
    assert relative_error(attended(MASKED.workload(), inputs), expected) <= 1e-3


def test_scores_of_both_signs() -> None:
    """The products reach some 1e4 of either sign: one key has nearly all the weight."""
    inputs = masked_inputs(np.zeros((21, 70)), larger=2e3)
    (expected,) = OPERATOR.reference(MASKED.workload(), inputs)
    result = attended(MASKED.workload(), inputs)
    assert np.abs(inputs[0]).max() > 3e3
    assert np.isfinite(result).all()
    assert relative_error(result, expected) <= 1e-2


def test_keys_that_are_masked_out() -> None:
    """Rows have all keys, none of the first tile's, none of the last one's, one key alone, or none at all."""
    mask = np.zeros((21, 70))
    mask[1, :16] = -np.inf
    mask[2, 64:] = -np.inf
    mask[3, :] = -np.inf
    mask[3, 40] = 0.0
    mask[4, :] = -np.inf
    mask[20, :69] = -np.inf
    inputs = masked_inputs(mask)
    result = attended(MASKED.workload(), inputs)
    (expected,) = OPERATOR.reference(MASKED.workload(), inputs)
    whole = np.arange(21) != 4
    assert np.isnan(expected[:, :, 4]).all()
    assert np.isnan(result[:, :, 4]).all()
    assert relative_error(result[:, :, whole], expected[:, :, whole]) <= 2e-6


def test_a_nan_reaches_its_row_alone() -> None:
    inputs = masked_inputs(np.zeros((21, 70)))
    inputs[0][12 * 5] = np.nan  # of query 5 of the first head
    result = attended(MASKED.workload(), inputs)
    wrong = np.zeros((2, 2, 21), bool)
    wrong[0, 0, 5] = True
    assert np.array_equal(np.isnan(result), np.broadcast_to(wrong[..., None], result.shape))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_allows_it(profile: str, dtype: str) -> None:
    """It is one kernel without memory of its own, whose local memory is what the space says."""
    target = profile_named(profile).target()
    if not gpu_limits_of(target).stores(dtype):
        assert TEMPLATE.space(VIT.workload(dtype), target) is None
        return
    for view in (VIT, SHAPES["odd"]):
        workload = view.workload(dtype)
        space = space_of(workload, target)
        for config in configs_of(workload, target, len(profile)):
            lowered = lower(TEMPLATE.prim_func(workload, target, config), target)
            assert violations(lowered, gpu_limits_of(target)) == [], dict(config.knobs)
            (kernel,) = lowered.kernels
            assert kernel.local_bytes <= space.encode(config)["local_bytes"]
            assert kernel.items == space.encode(config)["group_items"]
            assert lowered.workspace_bytes == 0


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("profile", PROFILES)
def test_every_compiler_takes_its_first_config(profile: str, dtype: str) -> None:
    target = profile_named(profile).target()
    workload = VIT.workload(dtype)
    config = space_of(workload, target).seed_configs()[0]
    source = lower(TEMPLATE.prim_func(workload, target, config), target).source()
    for compiler in compilers_or_skip(profile_named(profile)):
        for kernel in compiler.compile(source).values():
            assert (kernel.spill_bytes or 0) <= SPILL_BYTES, dict(config.knobs)


@pytest.mark.parametrize("name", SHAPES)
def test_samples_and_neighbours_are_valid(name: str) -> None:
    space = space_of(SHAPES[name].workload(), gpu("orin"))
    assert {space.config(seed) for seed in space.seeds} == set(space.seed_configs()) != set()
    drawn = [space.sample(random.Random(seed)) for seed in range(5)]
    assert any(drawn)
    for config in filter(None, drawn):
        assert all(space.is_valid(neighbour) for neighbour in space.neighbours(config))


FIRST_CHOICES = [
    (VIT, NAME),
    (Attention(64, 3, 49, 49, 32, 32), NAME),
    (Attention(1, 8, 4096, 4096, 64, 64), NAME),
    (Attention(1, 32, 1, 2048, 128, 128), "gpu.attention"),  # a query a head leaves a device idle
    (Attention(1, 1, 1024, 1024, 512, 512), "gpu.attention"),  # local memory has room for few queries
]


@pytest.mark.parametrize("profile", ["intel-hd505", "mali-g610", "jetson-orin"])
@pytest.mark.parametrize(("view", "template"), FIRST_CHOICES)
def test_it_is_the_first_choice_where_it_moves_fewer_bytes(view: Attention, template: str, profile: str) -> None:
    config = default_config(view.workload(), profile_named(profile).target())
    assert config is not None
    assert config.template == template


def test_devices_without_local_memory_are_not_offered_it() -> None:
    without = search_space(VIT.workload(), gpu("no_local_memory"))
    assert without is not None
    assert {space.template for space in without.spaces} == {"gpu.attention"}
    here = driver("pocl")
    assert TEMPLATE.space(VIT.workload(), here.target()) is None  # a CPU's local memory is none


def test_devices_without_halves_are_not_offered_them() -> None:
    limits = replace(GPUS["mali"], fp16=False)
    target = driver("pocl").target(limits)
    assert TEMPLATE.space(VIT.workload("float16"), target) is None
    assert TEMPLATE.space(VIT.workload(), target) is not None
