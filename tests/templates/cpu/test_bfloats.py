"""Products in bfloat16: how operands are rounded, right numbers under qemu, and dot products in the hot loops."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tvm.target import Target

from templates.bfloats import BFLOAT16, as_bits, rounded
from templates.cpu.bfloat_products import bfloat_products_of
from templates.cpu.isa import computes_in
from templates.epilogue import parse
from templates.reference import Operands, random_operands, reference, relative_error, sums
from templates.template import all_templates, anchor_template, search_space
from templates.workloads import Conv2d, Dense
from tests.templates.cpu.integer_cpus import arm, x86
from tests.templates.emulated import needs_qemu, run_emulated
from tests.templates.support import Compiled
from tests.templates.workloads import SAME3, WORKLOADS
from tuner.measure.targets.kinds import anchor_kinds, anchor_operands
from tuner.report.hot_loop import in_assembly
from tuning_db.record import Workload

NARROW = {name: replace(workload, dtype=BFLOAT16) for name, workload in WORKLOADS.items()}
TEMPLATES = sorted(t.name for t in all_templates() if BFLOAT16 in t.dtypes)
ARM = arm("neoverse-n2")
# A kernel sums in float32, and ARM's instruction rounds its two products to odd before it adds them.
SUMMED = 2e-6
# Two roundings of 2^-9 each change a product by up to this share of it.
PRODUCT = 2**-8 + 2**-18
# A change of the sum changes the result by no more.
_GENTLE = {"bias", "add", "relu", "leaky_relu", "clip", "sigmoid", "tanh"}


def kernels_of(workload: Workload, target: Target, samples: int, only: str | None = None) -> list[Compiled]:
    rng, space = random.Random(5), search_space(workload, target, None if only is None else [only])
    spaces = () if space is None else space.spaces
    return [
        Compiled(anchor_template(one.template), workload, target, config)
        for one in spaces
        for config in (one.seed_configs()[0], *filter(None, (one.sample(rng) for _ in range(samples))))
    ]


def test_numbers_are_rounded_to_the_nearest() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 100_000, np.uint32)
    bits[:1000] = bits[:1000] & np.uint32(0xFFFF0000) | np.uint32(0x8000)  # halfway between two
    values = np.concatenate([bits.view(np.float32), np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-40])])
    with np.errstate(invalid="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(as_bits(values)[numbers], wanted.view(np.uint16)[numbers])
    assert np.isnan(rounded(values)[~numbers]).all()
    assert rounded(values[:6].reshape(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("target", [arm("neoverse-v1"), ARM, arm("cortex-a720"), x86("cooperlake"), x86("znver4")])
def test_processors_with_dot_products(target: Target) -> None:
    assert computes_in(target, BFLOAT16)
    assert bfloat_products_of(target) is not None


@pytest.mark.parametrize("target", [arm("cortex-a76"), arm("neoverse-n1"), x86("cascadelake"), x86("haswell")])
def test_processors_without(target: Target) -> None:
    assert not computes_in(target, BFLOAT16)
    assert bfloat_products_of(target) is None
    assert all(search_space(workload, target) is None for workload in NARROW.values())


@needs_qemu
@pytest.mark.parametrize("name", TEMPLATES)
def test_results_match_float64(name: str, tmp_path: Path) -> None:
    """They are those of rounded operands, and as near to those of the operands as two roundings allow."""
    kernels = [kernel for workload in NARROW.values() for kernel in kernels_of(workload, ARM, 1, name)]
    assert kernels
    inputs = [random_operands(kernel.workload, 0) for kernel in kernels]
    expected = [reference(k.workload, i) for k, i in zip(kernels, inputs, strict=True)]
    results = run_emulated(kernels, inputs, [e.shape for e in expected], tmp_path, "max")
    gentle = 0
    for kernel, given, result, wanted in zip(kernels, inputs, results, expected, strict=True):
        assert relative_error(result, wanted) < SUMMED, (kernel.workload, dict(kernel.config.knobs))
        whole = replace(kernel.workload, dtype="float32")
        exact = reference(whole, given)
        assert 1e-4 < relative_error(result, exact) < 1e-2
        if {parse(step)[0] for step in whole.epilogue} <= _GENTLE:
            gentle += 1
            sizes = sums(whole, Operands(np.abs(given.data), np.abs(given.weight), given.extra))
            assert (np.abs(result - exact) <= PRODUCT * sizes + SUMMED * np.abs(exact).max()).all()
    assert gentle


@needs_qemu
def test_other_operands(tmp_path: Path) -> None:
    """Zeros, one value in a corner, and values that are no numbers; denormal ones are not asked for."""
    workloads = [NARROW["conv3x3_odd_sizes"], NARROW["first_layer"], Dense(5, 33, 30).workload(("bias",), BFLOAT16)]
    kernels = [kernel for workload in workloads for kernel in kernels_of(workload, ARM, 0)]
    names = {kind.name for workload in workloads for kind in anchor_kinds(workload.epilogue, BFLOAT16, True, 3)}
    assert "nan" in names
    assert "denormal" not in names
    for base in ("nan", "sparse"):
        inputs = [anchor_operands(kernel.workload, 3)[base] for kernel in kernels]
        expected = [reference(kernel.workload, i) for kernel, i in zip(kernels, inputs, strict=True)]
        assert all(np.isnan(e).any() for e in expected) == (base == "nan")
        for result, wanted in zip(
            run_emulated(kernels, inputs, [e.shape for e in expected], tmp_path, "max"), expected, strict=True
        ):
            assert relative_error(result, wanted) < SUMMED


HOT = {
    "conv3x3": Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3),
    "conv3x3_strided": Conv2d(1, 64, 28, 28, 128, (3, 3), (2, 2), SAME3),
    "conv1x1": Conv2d(1, 64, 28, 28, 64, (1, 1)),
    "conv1x1_strided": Conv2d(1, 256, 28, 28, 64, (1, 1), (2, 2)),
    "first_layer": Conv2d(1, 3, 112, 112, 64, (7, 7), (2, 2), (3, 3, 3, 3)),
    "dense": Dense(1, 512, 1000),
    "dense_rows": Dense(48, 768, 768),
}


@pytest.mark.parametrize("cpu", ["neoverse-v1", "neoverse-n2", "cortex-a720", "cooperlake", "znver4"])
@pytest.mark.parametrize("name", HOT)
def test_hot_loops_multiply_in_registers(name: str, cpu: str) -> None:
    is_x86 = cpu in ("cooperlake", "znver4")
    workload = HOT[name].workload(("bias", "relu"), BFLOAT16)
    (kernel,) = kernels_of(workload, x86(cpu) if is_x86 else arm(cpu), 0)
    text = kernel.build().inspect_source("asm")
    loop = in_assembly(text)
    assert loop is not None
    body = "\n".join(text.splitlines()[loop.first : loop.last + 1])
    products = re.findall(r"\svdpbf16ps\s.*%zmm" if is_x86 else r"\sbfdot\s+v\d+\.4s,", body)
    assert len(products) == loop.multiply_adds >= 16
    assert (loop.stack_stores, loop.stack_loads) == (0, 0)
    assert re.search(r"\svcvtne\w*2bf16\s" if is_x86 else r"\sbfcvtn\s", text)
    assert set(re.findall(r"\s(?:bl|callq)\s+\*?(\w+)", text)) <= {"memset"}
