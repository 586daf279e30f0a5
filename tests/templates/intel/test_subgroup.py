"""The subgroup convolution: right numbers on Intel's CPU runtime, and code that Intel's compilers accept."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import tvm
from tvm.target import Target

from templates.gpu.limits import gpu_target
from templates.lowering import lowering_context
from templates.reference import random_operands, reference, relative_error
from templates.template import template_named
from templates.workloads import Conv2d
from tests.templates.gpu.support import GPUS, HOST, driver, gpu
from tests.templates.support import Compiled
from tests.templates.workloads import WORKLOADS
from tests.tuner.measure.offline.support import compiler_or_skip
from tuning_db.record import Config, Workload

LIMITS = GPUS["intel"]
TARGET = gpu("intel")
TEMPLATE = template_named("intel.conv2d_subgroup")
NAMES = [name for name, workload in WORKLOADS.items() if workload.op == "conv2d" and TEMPLATE.space(workload, TARGET)]
# Intel's CPU runtime takes seconds for longer bodies, where every shuffle is a loop over lanes.
SHORT_BODY = 200
LAYER = Conv2d(1, 64, 28, 28, 64, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "add", "relu"))


def _configs(workload: Workload, size: int, count: int) -> list[Config]:
    space = TEMPLATE.space(workload, TARGET)
    assert space is not None
    assert space.features is not None
    rng = random.Random(11)
    drawn = [c for c in (space.sample(rng) for _ in range(300)) if c is not None and c["size"] == size]
    return [c for c in drawn if space.features(c.knobs)["body_fmas"] <= SHORT_BODY][:count]


def _source(workload: Workload, config: Config, target: Target = TARGET) -> str:
    return Compiled(TEMPLATE, workload, target, config).build().imports[0].inspect_source()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("name", NAMES)
def test_results_match_float64(name: str, size: int) -> None:
    device = driver("intel").device
    configs = _configs(WORKLOADS[name], size, 2)
    assert configs
    for config in configs:
        assert Compiled(TEMPLATE, WORKLOADS[name], TARGET, config, device).error() < 2e-6, dict(config.knobs)


@pytest.mark.parametrize("size", [8, 16])
def test_block_reads_read_the_same(size: int) -> None:
    device = driver("intel").device
    workload = WORKLOADS["conv3x3_odd_sizes"]
    inputs, shape = random_operands(workload, 1), Conv2d(**workload.attrs).out_shape
    config = _configs(workload, size, 1)[0]
    results = []
    for read in (0, 1):
        changed = Config(config.template, {**config.knobs, "block_read": read})
        assert ("= edgetune_block_read(" in _source(workload, changed)) == bool(read)
        results.append(Compiled(TEMPLATE, workload, TARGET, changed, device).run(inputs, shape))
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("size", [8, 16])
def test_code_asks_for_the_subgroup_and_has_no_barriers(size: int) -> None:
    space = TEMPLATE.space(LAYER, TARGET)
    config = next(c for c in space.seed_configs() if c["size"] == size)
    source = _source(LAYER, config)
    assert source.count("__attribute__((intel_reqd_sub_group_size(") == 1
    assert f"intel_reqd_sub_group_size({size})" in source
    assert "intel_sub_group_shuffle(" in source
    assert "barrier(" not in source
    assert "__local" not in source


def test_kernels_of_other_templates_in_a_module_stay_as_they_are() -> None:
    """One module, one target; only the subgroup's own function has another warp size."""
    device = driver("intel").device
    workload = WORKLOADS["conv1x1"]
    plain = template_named("gpu.conv2d_direct")
    config = _configs(workload, 16, 1)[0]
    other = plain.space(workload, TARGET).seed_configs()[0]
    functions = {
        "subgroup": TEMPLATE.prim_func(workload, TARGET, config),
        "direct": plain.prim_func(workload, TARGET, other),
    }
    module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    with lowering_context():
        library = tvm.tirx.build(module, target=TARGET)
    sources = {s: "intel_reqd_sub_group_size" in s for s in (m.inspect_source() for m in library.imports)}
    assert [found for s, found in sources.items() if "subgroup_kernel" in s] == [True]
    assert [found for s, found in sources.items() if "direct_kernel" in s] == [False]
    inputs = random_operands(workload, 0)
    expected = reference(workload, inputs)
    for name, template, chosen in (("subgroup", TEMPLATE, config), ("direct", plain, other)):
        compiled = Compiled(template, workload, TARGET, chosen, device)
        error = relative_error(compiled.call(library[name], inputs, expected.shape), expected)
        assert error < 2e-6, name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("profile", ["intel-hd505", "intel-xe"])
@pytest.mark.parametrize("compiler", ["clang", "ocloc"])
def test_compiles_for_intel_gpus(compiler: str, profile: str) -> None:
    offline = compiler_or_skip(profile, compiler)
    for config in TEMPLATE.space(LAYER, TARGET).seed_configs()[::4]:
        offline.compile(_source(LAYER, config))


@pytest.mark.parametrize("name", ["mali", "orin", "no_local_memory"])
def test_does_not_apply_elsewhere(name: str) -> None:
    assert TEMPLATE.space(LAYER, gpu(name)) is None


def test_sizes_are_the_devices() -> None:
    for subgroups, expected in (((8,), (8,)), ((16, 32), (16,)), ((8, 16, 32), (16, 8))):
        space = TEMPLATE.space(LAYER, gpu_target(replace(LIMITS, subgroups=subgroups), HOST))
        assert next(k for k in space.knobs if k.name == "size").values == expected
    assert TEMPLATE.space(LAYER, gpu_target(replace(LIMITS, subgroups=(32,)), HOST)) is None


def test_groups_respect_the_device() -> None:
    space = TEMPLATE.space(LAYER, gpu_target(replace(LIMITS, max_threads=32), HOST))
    groups = {c["size"] * c["subgroups"] for c in space}
    assert max(groups) == 32
    config = space.config({**space.seed_configs()[0].knobs, "size": 16, "subgroups": 4, "tw": 1, "ob": 1, "th": 1})
    assert space.why_invalid(config) == "the work-group is larger than the device's"
