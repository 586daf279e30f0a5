"""Products of two computed matrices of bytes are exact on every CPU: here where it has the instructions, and on ARM's
under qemu."""

from __future__ import annotations

import platform
import random
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.target import Target

from templates.batch_matmul import OPERATOR, BatchMatmul
from templates.integers import INTEGERS
from templates.lowering import build
from templates.template import search_space, template_named
from tests.templates.cpu.integer_cpus import ARM, TARGETS, X86
from tests.templates.emulated import call_emulated, needs_qemu, program_of
from tests.templates.support import host_target
from tuner.measure.codegen.toolchain import machine_of
from tuner.module.cpu_features import missing_features, required_features
from tuner.report.hot_loop import in_assembly
from tuning_db.record import Config

VIEWS = (
    BatchMatmul(2, 29, 37, 53),
    BatchMatmul(2, 19, 32, 64, transposed=True),
    BatchMatmul(1, 21, 30, 33, transposed=True),
    BatchMatmul(2, 40, 7, 3),
    BatchMatmul(1, 64, 64, 64),
)


def _configs(view: BatchMatmul, target: Target, samples: int) -> list[Config]:
    space, rng = search_space(view.workload(INTEGERS), target), random.Random(3)
    assert space is not None
    (one,) = space.spaces
    drawn = (one.sample(rng) for _ in range(samples))
    return [*one.seed_configs()[:2], *(config for config in drawn if config is not None)]


def _inputs(view: BatchMatmul) -> dict[str, tuple[np.ndarray, ...]]:
    workload = view.workload(INTEGERS)
    drawn = OPERATOR.random_inputs(workload, np.random.default_rng(4))
    return {"random": drawn, **dict(OPERATOR.hostile_inputs(workload, drawn))}


def _runnable(target: Target) -> None:
    if (missing := missing_features(required_features(target))) or machine_of(target) != platform.machine():
        pytest.skip(f"the processor lacks {missing}")
    if search_space(VIEWS[0].workload(INTEGERS), target) is None:
        pytest.skip("the processor has no instruction for integers")


def _check(view: BatchMatmul, target: Target, config: Config) -> None:
    workload = view.workload(INTEGERS)
    function = build(template_named(config.template).prim_func(workload, target, config), target)["main"]
    for kind, inputs in _inputs(view).items():
        (expected,) = OPERATOR.reference(workload, inputs)
        result = tvm.runtime.tensor(np.full(expected.shape, 77, np.int32))
        function(*map(tvm.runtime.tensor, inputs), result)
        assert np.array_equal(result.numpy(), expected), (kind, dict(config.knobs))


@pytest.mark.parametrize("cpu", ["host", *X86])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_products_are_exact(view: BatchMatmul, cpu: str) -> None:
    target = TARGETS[cpu]
    _runnable(target)
    for config in _configs(view, target, 3 if cpu == "host" else 1):
        _check(view, target, config)


SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES, st.booleans(), st.integers(0, 1000))
@settings(max_examples=12)
def test_products_of_any_size_are_exact(rows: int, depth: int, columns: int, transposed: bool, seed: int) -> None:
    _runnable(host_target())
    view = BatchMatmul(2, rows, depth, columns, transposed)
    configs = _configs(view, host_target(), 2)
    _check(view, host_target(), configs[seed % len(configs)])


@needs_qemu
@pytest.mark.parametrize("instruction", sorted(ARM))
def test_products_are_exact_on_arm(instruction: str, tmp_path: Path) -> None:
    target, emulated = ARM[instruction]
    made = [(view, config) for view in VIEWS for config in _configs(view, target, 1)]
    functions = [template_named(c.template).prim_func(v.workload(INTEGERS), target, c) for v, c in made]
    program = program_of(functions, target, tmp_path)
    for kind in _inputs(VIEWS[0]):
        inputs = [_inputs(view)[kind] for view, _ in made]
        expected = [OPERATOR.reference(v.workload(INTEGERS), i)[0] for (v, _), i in zip(made, inputs, strict=True)]
        arrays = [(*i, np.zeros(e.shape, np.int32)) for i, e in zip(inputs, expected, strict=True)]
        results = call_emulated(program, arrays, emulated)
        for result, wanted, (view, config) in zip(results, expected, made, strict=True):
            assert np.array_equal(result, wanted), (kind, view, dict(config.knobs))


@pytest.mark.parametrize("cpu", [*X86, *ARM])
def test_the_hot_loop_multiplies_by_the_instruction(cpu: str) -> None:
    target, view = TARGETS[cpu], BatchMatmul(1, 64, 64, 64)
    config = _configs(view, target, 0)[0]
    library = build(template_named(config.template).prim_func(view.workload(INTEGERS), target, config), target)
    text = library.inspect_source("asm")
    loop = in_assembly(text)
    assert loop is not None
    found = [line for line in text.splitlines()[loop.first : loop.last + 1] if f"{cpu.split()[0]}\t" in line]
    assert len(found) == loop.multiply_adds >= 8
    assert not loop.stack_stores, config  # loads are of the packed matrix, which may lie there
