"""Products of 8-bit integers: exact sums, epilogues, instructions. Kernels run where the processor has their
instructions, and those for ARM under qemu."""

from __future__ import annotations

import platform
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.target import Target

from templates.cpu.dot_products import products_of
from templates.epilogue import apply, apply_numpy, operands
from templates.integers import INTEGERS, Types, lacking
from templates.lowering import build
from templates.reference import random_operands, reference, same_integers, steps_off, sums
from templates.template import search_space
from templates.traffic import bytes_of
from templates.workloads import Conv2d, Dense
from tests.templates.cpu.integer_cpus import ARM, TARGETS, X86, operands_of_extremes, x86
from tests.templates.emulated import needs_qemu, run_emulated
from tests.templates.integer_workloads import SAME3, STEPS, SUM, WORKLOADS, integer, kernels_of, right
from tests.templates.support import host_target
from tuner.measure.codegen.toolchain import machine_of
from tuner.measure.targets.kinds import anchor_kinds, anchor_operands
from tuner.module.cpu_features import missing_features, required_features
from tuner.report.hot_loop import in_assembly


@pytest.mark.parametrize("cpu", ["host", *X86])
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_results_match_numpy(name: str, cpu: str) -> None:
    """Random operands of the whole range, data that all are 255, and zeros."""
    workload, target = WORKLOADS[name], TARGETS[cpu]
    if (missing := missing_features(required_features(target))) or machine_of(target) != platform.machine():
        pytest.skip(f"the processor lacks {missing}")
    kinds = {**anchor_operands(workload, 3), **operands_of_extremes(workload)}
    assert {kind.base for kind in anchor_kinds(workload.epilogue, INTEGERS, True, 3)} <= set(kinds)
    for made in kernels_of(workload, target, 2 if cpu == "host" else 1):
        function = made.build()["main"]
        for inputs in kinds.values():
            expected = reference(workload, inputs)
            result = made.call(function, inputs, expected.shape)
            assert result.dtype == Types.of(workload).out
            assert right(result, expected), dict(made.config.knobs)


@needs_qemu
@pytest.mark.parametrize("instruction", sorted(ARM))
def test_results_match_numpy_on_arm(instruction: str, tmp_path: Path) -> None:
    target, emulated = ARM[instruction]
    kernels = [kernel for workload in WORKLOADS.values() for kernel in kernels_of(workload, target, 1)]
    for kind in operands_of_extremes(WORKLOADS["conv3x3"]):
        inputs = [operands_of_extremes(kernel.workload)[kind] for kernel in kernels]
        expected = [reference(kernel.workload, i) for kernel, i in zip(kernels, inputs, strict=True)]
        results = run_emulated(kernels, inputs, [e.shape for e in expected], tmp_path, emulated)
        for kernel, result, wanted in zip(kernels, results, expected, strict=True):
            assert result.dtype == Types.of(kernel.workload).out
            assert right(result, wanted), (kind, kernel.workload, dict(kernel.config.knobs))


HOT = {
    "conv3x3": integer(Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3), "border", *STEPS),
    "conv3x3_strided": integer(Conv2d(1, 64, 28, 28, 128, (3, 3), (2, 2), SAME3), "border", *STEPS),
    "conv3x3_sum": integer(Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3), *SUM),
    "conv1x1": integer(Conv2d(1, 256, 14, 14, 128, (1, 1)), *STEPS),
    "grouped": integer(Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3, groups=16), "border", *STEPS),
    "dense": integer(Dense(1, 512, 1000), *STEPS),
    "dense_rows": integer(Dense(49, 256, 512), *STEPS),
}
# LLVM unrolls these as a whole, and keeps a few sums in memory, or what words are moved by.
SPILLING = {
    ("vpdpbusd 256", "conv3x3"),
    ("vpdpbusd 256", "conv3x3_strided"),
    ("vpmaddwd 256", "conv3x3_strided"),
    ("vpdpbusd 256", "grouped"),
}


GROUPED = "cpu.conv2d_by_group_integer"  # on ARM it is for groups of two


@pytest.mark.parametrize(
    ("name", "cpu"), [*product(HOT, X86), *product([name for name in HOT if name != "grouped"], ARM)]
)
def test_hot_loops_multiply_vectors_in_registers(name: str, cpu: str) -> None:
    instruction, _, bits = cpu.partition(" ")
    register = {"512": "%zmm", "256": "%ymm", "": "v"}[bits]
    kernels = kernels_of(HOT[name], TARGETS[cpu], 0)
    for kernel in kernels if name != "grouped" else [k for k in kernels if k.template.name == GROUPED]:
        text = kernel.build().inspect_source("asm")
        loop = in_assembly(text)
        assert loop is not None
        found = [line for line in text.splitlines()[loop.first : loop.last + 1] if f"{instruction}\t" in line]
        assert len(found) == loop.multiply_adds >= 8
        assert all(register in line for line in found)
        spilled = (loop.stack_stores or 0) + (loop.stack_loads or 0)
        assert spilled <= (loop.instructions // 10 if (cpu, name) in SPILLING else 0), kernel.config


@pytest.mark.parametrize("cpu", [*X86, *ARM])
def test_the_instruction_follows_from_features(cpu: str) -> None:
    products = products_of(TARGETS[cpu])
    assert products is not None
    words, bits = {"vpdpbusd": "vpdpbusd", "vpmaddwd": "pmadd"}, int(cpu.partition(" ")[2] or 128)
    assert words.get(cpu.split()[0], cpu) in products.instruction
    assert products.lanes == bits // 32


@pytest.mark.parametrize(
    "target",
    [
        x86("x86-64-v2"),
        x86("knl"),  # AVX-512 without its instructions for integers of 8 and 16 bits
        Target({"kind": "opencl", "device": "mali", "host": {"kind": "llvm"}}),
    ],
)
def test_targets_without_instructions(target: Target) -> None:
    assert products_of(target) is None


def test_no_template_applies_without_instructions() -> None:
    target = x86("x86-64-v2")
    assert all(search_space(w, target) is None for name, w in WORKLOADS.items() if "depthwise" not in name)


def test_what_sums_of_moved_data_lack() -> None:
    """It is packed byte by byte, and read as the kernel reads it."""
    weight = np.random.default_rng(0).integers(-128, 128, (2, 9, 4, 4)).astype(np.int8)
    (packed,) = lacking(weight, 4)[:1]
    parts = packed.view(np.uint8).reshape(4, 4).astype(np.int64)
    value = sum(parts[i] << (8 * i) for i in range(4)).astype(np.uint32).view(np.int32)
    assert value.tolist() == (128 * weight[0].astype(int).sum((0, 2))).tolist()


def test_a_quantised_result_may_be_one_step_off_in_a_thousandth_of_its_values() -> None:
    expected = np.full((10, 500), 7.0)
    result = expected.astype(np.uint8)
    result.flat[:5] += 1
    assert same_integers(result, expected)
    result.flat[5] += 1
    assert not same_integers(result, expected)
    result.flat[:6] = 7
    result.flat[0] = 9
    assert not same_integers(result, expected)


def test_one_rounding_may_be_several_steps_of_a_result_that_is_quantised_twice() -> None:
    """The steps of the first scale may be larger than those of the second."""
    workload = WORKLOADS["conv1x1_sum"]
    at = operands(workload.epilogue).index("add_bytes")
    extra = list(random_operands(workload, 0).extra)
    assert steps_off(workload, extra) == 1
    extra[at] = np.array([2.4, 0.6, 0.0], np.float32)
    assert steps_off(workload, extra) == 3
    reals = WORKLOADS["conv1x1_sum_of_reals"]
    assert steps_off(reals, random_operands(reals, 0).extra) == 1
    expected = np.full((10, 500), 7.0)
    result = expected.astype(np.uint8)
    result.flat[0] += 3
    assert same_integers(result, expected, 3)
    assert not same_integers(result, expected, 2)


def test_sums_must_be_equal() -> None:
    expected = np.full((10, 500), 2.0**30 + 1)
    result = expected.astype(np.int32)
    assert same_integers(result, expected)
    result.flat[0] += 1
    assert not same_integers(result, expected)


def test_the_tokens_of_integers_in_numpy() -> None:
    sums = np.array([[[[10.0, -4.0]], [[0.0, 100.0]]]])
    arrays = [np.array([9]), np.array([1, 2]), np.array([[[3, 5]]]), np.array([5.0, 20.0]), np.array([128.0])]
    found = apply_numpy(("border", "offset", "window", "real", "scale", "quantize"), sums, arrays)
    assert found.tolist() == [[[[198, 138]], [[228, 255]]]]


def test_a_sum_of_steps_and_bytes_in_numpy() -> None:
    steps = np.array([[[[10.0, 200.0]]]])
    arrays = [np.array([[[[4, 255]]]]), np.array([2.0, 0.5, -12.0]), np.array([3.0])]
    assert apply_numpy(("bytes", "add_bytes", "relu", "quantize"), steps, arrays).tolist() == [[[[13, 255]]]]


def test_what_is_no_number_becomes_the_lowest_step() -> None:
    x = te.placeholder((5,), name="x")
    zero = te.placeholder((1,), "uint8", name="zero")
    out = te.compute((5,), lambda i: apply(("quantize",), x[i], [zero[0]]).astype("uint8"))
    function = build(te.create_prim_func([x, zero, out]), host_target())["main"]
    values = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5], np.float32)
    tensors = [tvm.runtime.tensor(a) for a in (values, np.array([3], np.uint8), np.zeros(5, np.uint8))]
    function(*tensors)
    assert tensors[-1].numpy().tolist() == [0, 255, 0, 3, 5]


def test_traffic_counts_each_operand_in_its_own_type() -> None:
    workload = integer(Conv2d(1, 32, 14, 14, 48, (3, 3), padding=SAME3), "border", "offset", "window", *SUM)
    bytes_alone = 1 + 2  # the border and two zero points
    whole = 14 * 14 * (32 + 48 + 48) + 48 * 32 * 9 + bytes_alone  # data, what is added, the result, the weight
    real = 2 * 48 + 3  # scale and bias, the numbers of a sum
    assert bytes_of(workload) == whole + 4 * (48 + 14 * 14 + real)


def test_random_operands_are_of_the_whole_range() -> None:
    inputs = random_operands(WORKLOADS["conv3x3_border"], 0)
    assert (inputs.data.dtype, inputs.data.min(), inputs.data.max()) == (np.uint8, 0, 255)
    assert (inputs.weight.dtype, inputs.weight.min(), inputs.weight.max()) == (np.int8, -128, 127)


@pytest.mark.parametrize("depth", [3, 512])
def test_activations_of_random_operands_are_of_numbers_near_one_and_results_of_the_whole_range(depth: int) -> None:
    """Exponentials of hundreds are denormal, which takes processors many times as long."""
    epilogue = ("border", "offset", "real", "scale", "bias", "silu", "scale", "quantize")
    workload = Conv2d(1, depth, 8, 8, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload(epilogue, INTEGERS)
    inputs = random_operands(workload, 0)
    before = apply_numpy(epilogue[:5], sums(workload, inputs), [e.astype(np.float64) for e in inputs.extra[:4]])
    assert 0.5 < before.std() < 5
    assert np.abs(before).max() < 80
    assert reference(workload, inputs).std() > 10
