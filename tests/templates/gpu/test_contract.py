"""What every GPU template must keep: right numbers on real drivers, nothing on the host, no limit exceeded."""

from __future__ import annotations

import random
from dataclasses import replace
from zlib import crc32

import pytest
from tvm.target import Target

from templates.gpu.checks import violations
from templates.gpu.limits import gpu_limits, gpu_target
from templates.gpu.lowered import lower
from templates.integers import INTEGERS
from templates.reference import random_operands, reference
from templates.template import AnchorTemplate, all_templates
from tests.templates import integer_workloads
from tests.templates.gpu.support import GPUS, HOST, PLATFORMS, PROCESSOR, driver, gpu
from tests.templates.support import Compiled, host_target
from tests.templates.workloads import WORKLOADS
from tuning_db.record import Config, tolerance_of

pytestmark = pytest.mark.sampled(12)
TEMPLATES = {t.name: t for t in all_templates() if isinstance(t, AnchorTemplate)}


# A few of those above in half precision.
HALF = ("conv3x3_odd_sizes", "conv1x1_prime", "conv_grouped")
ALL_WORKLOADS = WORKLOADS | {f"{name}_float16": replace(WORKLOADS[name], dtype="float16") for name in HALF}
ALL_WORKLOADS |= {f"{name}_uint8": workload for name, workload in integer_workloads.WORKLOADS.items()}


def applies(template: AnchorTemplate, name: str, target: Target) -> bool:
    workload = ALL_WORKLOADS[name]
    suits = template.op == workload.op and workload.dtype in template.dtypes
    return suits and template.space(workload, target) is not None


LIMITS = {**GPUS, "processor": PROCESSOR}  # what runs here, too
TARGETS = {name: gpu_target(limits, HOST) for name, limits in LIMITS.items()}
CASES = [
    (template, name)
    for template in TEMPLATES
    for name in ALL_WORKLOADS
    if any(applies(TEMPLATES[template], name, target) for target in TARGETS.values())
]
# With local memory, groups, and sizes that nothing divides: they run with a GPU's limits too.
HARD = (
    "conv3x3_odd_sizes",
    "conv3x3_strided",
    "conv1x1_prime",
    "conv_grouped",
    "first_layer",
    "depthwise_strided",
    "dense_rows",
)


def chosen(template: str, name: str, target: Target, place: int) -> list[Config]:
    """One of the author's seeds or a random config, by turns from case to case and from `place` (a driver, a device)
    to place: of a few the one with the shortest unrolled body, for a driver takes a second to compile a long one."""
    if not applies(TEMPLATES[template], name, target):
        pytest.skip("does not apply to this device")
    space = TEMPLATES[template].space(ALL_WORKLOADS[name], target)
    rng = random.Random(crc32(f"{template} {name}".encode()))
    turn = CASES.index((template, name)) + place
    known = space.seed_configs()
    assert known, "every space offers a valid first config"
    drawn = [config for config in (space.sample(rng) for _ in range(4)) if config is not None]

    def length(config: Config) -> float:
        return space.encode(config).get("body_fmas", 0.0)

    seeds = rng.sample(known, min(2, len(known)))
    return [min(drawn if turn % 2 and drawn else seeds, key=length)]


def check(template: str, name: str, target: Target, configs: list[Config], device: object) -> None:
    for config in configs:
        kernel = Compiled(TEMPLATES[template], ALL_WORKLOADS[name], target, config, device)
        if ALL_WORKLOADS[name].dtype == INTEGERS:
            inputs = random_operands(kernel.workload, 0)
            expected = reference(kernel.workload, inputs)
            assert integer_workloads.right(kernel.run(inputs, expected.shape), expected), dict(config.knobs)
            continue
        error = kernel.error()
        allowed = 3e-5 if not TEMPLATES[template].exact else 2e-6
        assert error < (tolerance_of("float16") if ALL_WORKLOADS[name].dtype == "float16" else allowed), dict(
            config.knobs
        )


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(("template", "name"), CASES)
def test_results_match_float64(template: str, name: str, platform: str) -> None:
    here = driver(platform)
    place = list(PLATFORMS).index(platform)
    check(template, name, here.target(), chosen(template, name, here.target(), place), here.device)


@pytest.mark.parametrize(("template", "name"), [case for case in CASES if case[1] in HARD])
def test_results_match_float64_with_a_gpus_limits(template: str, name: str) -> None:
    """Large groups and local memory, on one driver or the other."""
    here = driver(list(PLATFORMS)[CASES.index((template, name)) % len(PLATFORMS)])
    target = here.like_nvidia()
    check(template, name, target, [*chosen(template, name, target, 0), *chosen(template, name, target, 1)], here.device)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(("template", "name"), CASES)
def test_lowered_code_keeps_to_the_limits(template: str, name: str, limits: str) -> None:
    """Everything runs on the device, no barrier is divergent, no limit is exceeded, and the source is generated."""
    target = TARGETS[limits]
    if not applies(TEMPLATES[template], name, target):
        pytest.skip("does not apply to this device")
    space = TEMPLATES[template].space(ALL_WORKLOADS[name], target)
    for config in chosen(template, name, target, list(LIMITS).index(limits)):
        lowered = lower(TEMPLATES[template].prim_func(ALL_WORKLOADS[name], target, config), target)
        assert violations(lowered, LIMITS[limits]) == [], dict(config.knobs)
        claimed = space.encode(config).get("local_bytes", 0.0)
        assert max(kernel.local_bytes for kernel in lowered.kernels) <= claimed, dict(config.knobs)
        assert all(kernel.name in lowered.source() for kernel in lowered.kernels)


@pytest.mark.parametrize(("template", "name"), CASES)
def test_samples_and_neighbours_are_valid(template: str, name: str) -> None:
    for target in TARGETS.values():
        space = TEMPLATES[template].space(ALL_WORKLOADS[name], target)
        if space is None:
            continue
        assert space.seed_configs()
        rng = random.Random(3)
        drawn = [space.sample(rng) for _ in range(5)]
        assert any(drawn), "random search finds valid configs"
        for config in filter(None, drawn):
            assert space.why_invalid(config) is None
            assert all(space.is_valid(n) for n in space.neighbours(config))


@pytest.mark.parametrize(("template", "name"), CASES)
def test_weights_with_equal_keys_are_equal(template: str, name: str) -> None:
    workload, rng = ALL_WORKLOADS[name], random.Random(5)
    target = next(target for target in TARGETS.values() if applies(TEMPLATES[template], name, target))
    space = TEMPLATES[template].space(workload, target)
    packed: dict[str, bytes] = {}
    weight = random_operands(workload, 0).weight
    for config in filter(None, (space.sample(rng) for _ in range(6))):
        key = TEMPLATES[template].weight_key(workload, target, config)
        value = TEMPLATES[template].pack_weight(workload, target, config, weight).tobytes()
        assert packed.setdefault(key, value) == value


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_templates_keep_to_their_kind_of_device(name: str) -> None:
    for template in all_templates():
        for target in (host_target(), *TARGETS.values()):
            on_gpu = gpu_limits(target) is not None
            if template.name.startswith("cpu.") == on_gpu:
                assert not applies(template, name, target)


@pytest.mark.parametrize("limits", GPUS)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_has_a_template(name: str, limits: str) -> None:
    assert any(applies(template, name, gpu(limits)) for template in all_templates())
