"""What every template must keep: right numbers on every vector width, seeds and samples valid, constraints honest."""

from __future__ import annotations

import random

import pytest
import tvm
from tvm.target import Target

from templates.template import AnchorTemplate, all_templates, search_space
from tests.templates.support import Compiled, host_target
from tests.templates.workloads import WORKLOADS
from tuning_db.record import Workload

TEMPLATES = {t.name: t for t in all_templates() if isinstance(t, AnchorTemplate)}
CASES = [
    (template, name)
    for template in TEMPLATES
    for name, workload in WORKLOADS.items()
    if TEMPLATES[template].op == workload.op
    and workload.dtype in TEMPLATES[template].dtypes
    and TEMPLATES[template].space(workload, host_target("x86-64-v3" if "x86" in str(host_target()) else None))
]


def _chosen(template: AnchorTemplate, workload: Workload, target: Target, samples: int) -> list:
    space = template.space(workload, target)
    if space is None:
        pytest.skip("does not apply with this vector width")
    rng = random.Random(7)
    seeds = space.seed_configs()
    assert seeds, "every space offers a valid first config"
    drawn = [c for c in (space.sample(rng) for _ in range(samples)) if c is not None]
    return [*rng.sample(seeds, min(2, len(seeds))), *drawn]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("template", "name"), CASES)
def test_results_match_float64(template: str, name: str) -> None:
    target = host_target()
    chosen = TEMPLATES[template]
    for config in _chosen(chosen, WORKLOADS[name], target, 4):
        error = Compiled(chosen, WORKLOADS[name], target, config).error()
        assert error < (3e-5 if not chosen.exact else 2e-6), dict(config.knobs)


@pytest.mark.skipif("x86" not in str(host_target()), reason="narrower x86 vectors need an x86 processor")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    "name", ["conv3x3_odd_sizes", "conv1x1_prime", "first_layer", "depthwise", "conv_pairs_strided", "dense_rows"]
)
def test_results_match_float64_with_narrow_vectors(name: str, mcpu: str) -> None:
    target = host_target(mcpu)
    for template in all_templates():
        workload = WORKLOADS[name]
        if template.op != workload.op or workload.dtype not in template.dtypes:
            continue
        if template.space(workload, target) is not None:
            for config in _chosen(template, WORKLOADS[name], target, 1):
                assert Compiled(template, WORKLOADS[name], target, config).error() < 3e-5, dict(config.knobs)


@pytest.mark.sampled(4)
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


@pytest.mark.sampled(4)
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
            key = TEMPLATES[template].weight_key(workload, target, config)
            value = TEMPLATES[template].pack_weight(workload, target, config, weight).tobytes()
            assert packed.setdefault(key, value) == value
