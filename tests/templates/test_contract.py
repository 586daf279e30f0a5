"""What every template must keep: right numbers on every vector width, seeds and samples valid, constraints honest."""

from __future__ import annotations

import random

import pytest
import tvm
from tvm.target import Target

from templates.template import Template, all_templates, search_space
from templates.workloads import Conv2d, Dense
from tests.templates.support import Compiled, host_target
from tuning_db.record import Workload

SAME3 = (1, 1, 1, 1)
WORKLOADS: dict[str, Workload] = {
    "conv3x3": Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3).workload(("bias", "relu")),
    "conv3x3_odd_sizes": Conv2d(1, 24, 13, 9, 40, (3, 3), padding=(0, 1, 2, 1)).workload(("bias", "add", "relu")),
    "conv3x3_batch": Conv2d(2, 32, 8, 8, 16, (3, 3), padding=SAME3).workload(("bias", "clip:0.0:6.0")),
    "conv3x3_strided": Conv2d(1, 32, 15, 17, 32, (3, 3), (2, 2), SAME3).workload(("bias", "leaky_relu:0.1")),
    "conv3x3_dilated": Conv2d(1, 16, 16, 16, 16, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)).workload(("relu",)),
    "conv5x1": Conv2d(1, 16, 11, 7, 32, (5, 1), padding=(2, 0, 2, 0)).workload(),
    "conv1x1": Conv2d(1, 64, 7, 7, 48, (1, 1)).workload(("bias", "add", "relu")),
    "conv1x1_prime": Conv2d(1, 16, 17, 19, 40, (1, 1)).workload(("bias", "silu")),
    "conv1x1_strided": Conv2d(1, 32, 14, 14, 64, (1, 1), (2, 2)).workload(("bias",)),
    "conv_grouped": Conv2d(1, 32, 9, 9, 64, (3, 3), padding=SAME3, groups=2).workload(("bias", "hardswish")),
    "conv_small_groups": Conv2d(1, 32, 9, 9, 32, (3, 3), padding=SAME3, groups=8).workload(("bias", "sigmoid")),
    "conv_uneven_groups": Conv2d(1, 24, 6, 6, 36, (3, 3), padding=SAME3, groups=3).workload(("bias", "tanh")),
    "first_layer": Conv2d(1, 3, 30, 26, 32, (7, 7), (2, 2), (3, 3, 3, 3)).workload(("bias", "relu")),
    "grey_input": Conv2d(2, 1, 12, 12, 20, (5, 5)).workload(("bias",)),
    "depthwise": Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3, groups=32).workload(("bias", "relu")),
    "depthwise_strided": Conv2d(2, 24, 15, 9, 24, (5, 3), (2, 1), (2, 1, 2, 1), groups=24).workload(("bias", "add")),
    "depthwise_multiplier": Conv2d(1, 16, 8, 8, 32, (3, 3), padding=SAME3, groups=16).workload(("bias",)),
    "dense": Dense(1, 96, 100).workload(("bias",)),
    "dense_rows": Dense(5, 33, 30).workload(("bias", "add", "relu")),
}
TEMPLATES = {t.name: t for t in all_templates()}
CASES = [
    (template, name)
    for template in TEMPLATES
    for name, workload in WORKLOADS.items()
    if TEMPLATES[template].op == workload.op
    and TEMPLATES[template].space(workload, host_target("x86-64-v3" if "x86" in str(host_target()) else None))
]


def _chosen(template: Template, workload: Workload, target: Target, samples: int) -> list:
    space = template.space(workload, target)
    if space is None:
        pytest.skip("does not apply with this vector width")
    rng = random.Random(7)
    seeds = space.seed_configs()
    assert seeds, "every space offers a valid first config"
    drawn = [c for c in (space.sample(rng) for _ in range(samples)) if c is not None]
    return [*rng.sample(seeds, min(2, len(seeds))), *drawn]


@pytest.mark.parametrize(("template", "name"), CASES)
def test_results_match_float64(template: str, name: str) -> None:
    target = host_target()
    chosen = TEMPLATES[template]
    for config in _chosen(chosen, WORKLOADS[name], target, 4):
        error = Compiled(chosen, WORKLOADS[name], target, config).error()
        assert error < (3e-5 if not chosen.exact else 2e-6), dict(config.knobs)


@pytest.mark.skipif("x86" not in str(host_target()), reason="narrower x86 vectors need an x86 processor")
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", ["conv3x3_odd_sizes", "conv1x1_prime", "first_layer", "depthwise", "dense_rows"])
def test_results_match_float64_with_narrow_vectors(name: str, mcpu: str) -> None:
    target = host_target(mcpu)
    for template in all_templates():
        if template.op == WORKLOADS[name].op and template.space(WORKLOADS[name], target) is not None:
            for config in _chosen(template, WORKLOADS[name], target, 1):
                assert Compiled(template, WORKLOADS[name], target, config).error() < 3e-5, dict(config.knobs)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_compiles_for_neon(name: str, tmp_path) -> None:
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4})
    space = search_space(WORKLOADS[name], target)
    assert space is not None
    for one in space.spaces:
        config = one.seed_configs()[0]
        func = TEMPLATES[one.template].prim_func(WORKLOADS[name], target, config)
        tvm.tirx.build(func, target=target).write_to_file(str(tmp_path / "kernel.o"), "o")
        header = (tmp_path / "kernel.o").read_bytes()[:20]
        assert header[:4] == b"\x7fELF"
        assert header[18] == 183  # EM_AARCH64


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_has_a_template(name: str) -> None:
    space = search_space(WORKLOADS[name], host_target())
    assert space is not None
    assert space.seed_configs()


@pytest.mark.parametrize(("template", "name"), CASES)
def test_samples_and_neighbours_are_valid(template: str, name: str) -> None:
    space = TEMPLATES[template].space(WORKLOADS[name], host_target())
    if space is None:
        pytest.skip("does not apply with this vector width")
    rng = random.Random(3)
    for _ in range(20):
        config = space.sample(rng)
        if config is None:
            continue
        assert space.why_invalid(config) is None
        assert all(space.is_valid(n) for n in space.neighbours(config))
        mutated = space.mutate(config, rng)
        assert mutated is None or (space.is_valid(mutated) and mutated != config)


def test_winograd_can_be_forbidden() -> None:
    workload = WORKLOADS["conv3x3"]
    names = {s.template for s in search_space(workload, host_target()).spaces}
    exact = {s.template for s in search_space(workload, host_target(), exact=True).spaces}
    assert names - exact == {"cpu.conv2d_winograd"}


def test_weights_with_equal_keys_are_equal() -> None:
    """Configs that claim to share a packed weight do share it: the module and the runner rely on it."""
    rng = random.Random(5)
    from templates.reference import random_operands

    for template, name in CASES:
        workload, target = WORKLOADS[name], host_target()
        space = TEMPLATES[template].space(workload, target)
        if space is None:
            continue
        packed: dict[str, bytes] = {}
        weight = random_operands(workload, 0).weight
        for config in (space.sample(rng) for _ in range(6)):
            if config is None:
                continue
            key = TEMPLATES[template].weight_key(config)
            value = TEMPLATES[template].pack_weight(workload, target, config, weight).tobytes()
            assert packed.setdefault(key, value) == value
