"""Templates of CPUs that compute in halves: right numbers under qemu, and vectors of halves in their hot loops."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tvm.target import Target

from templates.batch_matmul import OPERATOR, BatchMatmul
from templates.cpu.isa import computes_in, vector_unit
from templates.lowering import build
from templates.reference import random_operands, reference, relative_error
from templates.template import AnchorTemplate, all_templates, template_named
from templates.workloads import Conv2d, Dense
from tests.templates.emulated import call_emulated, needs_qemu, program_of, run_emulated
from tests.templates.support import Compiled
from tests.templates.workloads import SAME3, WORKLOADS
from tuner.report.hot_loop import in_assembly
from tuning_db.record import tolerance_of


def arm(mcpu: str) -> Target:
    return Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "mattr": ["+neon"], "num-cores": 4})


# Sums of so many terms that they are widened.
DEEP = {
    "conv3x3_deep": Conv2d(1, 192, 8, 9, 24, (3, 3), padding=SAME3).workload(("bias", "silu")),
    "conv1x1_deep": Conv2d(1, 512, 6, 6, 40, (1, 1)).workload(("bias", "add", "relu")),
    "conv1x1_deep_strided": Conv2d(2, 320, 8, 6, 16, (1, 1), (2, 2)).workload(("clip:0.0:6.0",)),
    "conv5x5_rows": Conv2d(1, 24, 9, 9, 16, (5, 5), padding=(2, 2, 2, 2)).workload(("leaky_relu:0.1",)),
    "conv7x7_wide": Conv2d(1, 6, 14, 14, 16, (7, 7), (2, 2), (3, 3, 3, 3)).workload(("relu",)),
    "conv1x9": Conv2d(1, 40, 6, 20, 16, (1, 9), padding=(0, 4, 0, 4)).workload(),
    "depthwise5x5": Conv2d(1, 20, 11, 11, 20, (5, 5), padding=(2, 2, 2, 2), groups=20).workload(("bias", "hardswish")),
    "dense_deep": Dense(1, 1024, 100).workload(("bias", "gelu")),
    "dense_rows_deep": Dense(7, 768, 50).workload(("bias", "add", "relu")),
}
HALVES = {name: replace(workload, dtype="float16") for name, workload in {**WORKLOADS, **DEEP}.items()}
TEMPLATES = {t.name: t for t in all_templates() if isinstance(t, AnchorTemplate) and "float16" in t.dtypes}


@pytest.mark.parametrize("mcpu", ["cortex-a76", "neoverse-n1", "neoverse-v1", "cortex-a78", "carmel", "apple-m1"])
def test_processors_with_halves(mcpu: str) -> None:
    assert computes_in(arm(mcpu), "float16")
    assert (vector_unit(arm(mcpu), "float16").lanes, vector_unit(arm(mcpu)).lanes) == (8, 4)


@pytest.mark.parametrize("mcpu", ["cortex-a72", "cortex-a53", "cortex-a57", "generic"])
def test_processors_without(mcpu: str) -> None:
    assert not computes_in(arm(mcpu), "float16")
    assert all(t.space(w, arm(mcpu)) is None for t in TEMPLATES.values() for w in HALVES.values() if t.op == w.op)


@needs_qemu
@pytest.mark.parametrize("name", sorted(n for n in TEMPLATES if n.startswith("cpu.")))
def test_results_match_float64(name: str, tmp_path: Path) -> None:
    template, target, rng = TEMPLATES[name], arm("cortex-a76"), random.Random(5)
    kernels = []
    for workload in HALVES.values():
        space = template.space(workload, target) if template.op == workload.op else None
        if space is not None:
            configs = [space.seed_configs()[0], *filter(None, (space.sample(rng) for _ in range(2)))]
            kernels += [Compiled(template, workload, target, config) for config in configs]
    assert kernels
    inputs = [random_operands(kernel.workload, 0) for kernel in kernels]
    expected = [reference(k.workload, i) for k, i in zip(kernels, inputs, strict=True)]
    results = run_emulated(kernels, inputs, [e.shape for e in expected], tmp_path, "cortex-a76")
    for kernel, result, wanted in zip(kernels, results, expected, strict=True):
        error, rounded = relative_error(result, wanted), relative_error(wanted.astype(np.float16), wanted)
        assert rounded <= error < tolerance_of("float16"), (kernel.workload, dict(kernel.config.knobs))


@needs_qemu
@pytest.mark.parametrize(
    ("name", "anchor"),
    [("cpu.conv2d_direct", Conv2d(1, 4096, 2, 3, 16, (1, 1))), ("cpu.dense", Dense(2, 4096, 16))],
)
def test_long_sums_are_widened(name: str, anchor: Conv2d | Dense, tmp_path: Path) -> None:
    """4096 products of 0.5: a half would stop growing at 1024."""
    template, workload, target = TEMPLATES[name], anchor.workload((), "float16"), arm("cortex-a76")
    space = template.space(workload, target)
    assert space is not None
    rng = random.Random(3)
    configs = [space.seed_configs()[0], *filter(None, (space.sample(rng) for _ in range(4)))]
    inputs = random_operands(workload, 0)
    ones = replace(inputs, data=np.ones_like(inputs.data), weight=np.full_like(inputs.weight, 0.5))
    kernels = [Compiled(template, workload, target, config) for config in configs]
    shapes = [anchor.out_shape] * len(kernels)
    for result in run_emulated(kernels, [ones] * len(kernels), shapes, tmp_path, "cortex-a76"):
        np.testing.assert_array_equal(result, np.full(anchor.out_shape, 2048, np.float16))


@needs_qemu
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_matrices_match_float64(transposed: bool, tmp_path: Path) -> None:
    """Also of large values and of one that is no number."""
    template, target, rng = template_named("cpu.batch_matmul"), arm("cortex-a76"), random.Random(2)
    functions, given, wanted = [], [], []
    for sizes in ((3, 14, 40, 36), (2, 9, 384, 50), (1, 33, 128, 64)):
        workload = BatchMatmul(*sizes, transposed).workload(dtype="float16")
        space = template.space(workload, target)
        assert space is not None
        inputs = OPERATOR.random_inputs(workload, np.random.default_rng(1))
        kinds = [inputs, *(hostile for _, hostile in OPERATOR.hostile_inputs(workload, inputs))]
        for config in [space.seed_configs()[0], *filter(None, (space.sample(rng) for _ in range(2)))]:
            for operands in kinds:
                functions.append(template.prim_func(workload, target, config))
                (product,) = OPERATOR.reference(workload, operands)
                given.append([*operands, np.full(product.shape, np.nan, np.float16)])
                wanted.append(product)
    results = call_emulated(program_of(functions, target, tmp_path), given, "cortex-a76")
    for result, product in zip(results, wanted, strict=True):
        assert relative_error(result, product) < tolerance_of("float16")


@pytest.mark.parametrize("mcpu", ["neoverse-n1", "cortex-a76"])
@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("cpu.conv2d_direct", Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3)),
        ("cpu.conv2d_direct", Conv2d(1, 64, 28, 28, 64, (1, 1))),
        ("cpu.conv2d_direct_nchw", Conv2d(1, 3, 112, 112, 64, (7, 7), (2, 2), (3, 3, 3, 3))),
        ("cpu.conv2d_gathered", Conv2d(1, 256, 28, 28, 64, (1, 1), (2, 2))),
        ("cpu.conv2d_winograd", Conv2d(1, 256, 14, 14, 64, (3, 3), padding=SAME3)),
        ("cpu.depthwise", Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3, groups=64)),
        ("cpu.depthwise", Conv2d(1, 64, 28, 28, 64, (5, 5), (2, 2), padding=(2, 2, 2, 2), groups=64)),
        ("cpu.conv2d_by_group", Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3, groups=16)),
        ("cpu.dense", Dense(1, 512, 1000)),
        ("cpu.dense", Dense(48, 768, 768)),
        ("cpu.batch_matmul", BatchMatmul(4, 196, 384, 192)),
    ],
)
def test_hot_loops_are_vectors_of_halves_without_spills(
    name: str, workload: Conv2d | Dense | BatchMatmul, mcpu: str
) -> None:
    target, template = arm(mcpu), template_named(name)
    if isinstance(workload, BatchMatmul):
        made = workload.workload("float16")
    else:
        made = workload.workload(("bias", "relu"), "float16")
    space = template.space(made, target)
    assert space is not None
    func = template.prim_func(made, target, space.seed_configs()[0])
    text = build(func, target).inspect_source("asm")
    loop = in_assembly(text)
    assert loop is not None
    body = "\n".join(text.splitlines()[loop.first : loop.last + 1])
    assert len(re.findall(r"\sfmla\s+v\d+\.8h,", body)) == loop.multiply_adds >= 8
    assert (loop.stack_stores, loop.stack_loads) == (0, 0)
    assert set(re.findall(r"\sbl\s+(\w+)", text)) <= {"memset"}  # no conversions in functions of the C library
