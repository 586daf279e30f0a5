"""Products of 8-bit integers: exact sums, epilogues, instructions. Kernels run where the processor has dot products."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.target import Target

from templates.cpu.dot_products import products_of
from templates.epilogue import apply, apply_numpy
from templates.integers import INTEGERS, Types
from templates.lowering import build
from templates.reference import random_operands, reference, relative_error, same_integers
from templates.template import AnchorTemplate, search_space, template_named
from templates.workloads import Conv2d, Dense
from tests.templates.support import Compiled, host_target
from tuner.measure.targets.kinds import anchor_kinds, anchor_operands
from tuning_db.record import Workload

SAME3 = (1, 1, 1, 1)
REAL = ("offset", "window", "real", "scale", "bias", "silu")
STEPS = ("offset", "real", "scale", "relu", "quantize")


def _integer(anchor: Conv2d | Dense, *epilogue: str) -> Workload:
    return anchor.workload(epilogue, INTEGERS)


WORKLOADS = {
    "conv3x3": _integer(Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3)),
    "conv3x3_border": _integer(Conv2d(1, 32, 14, 12, 48, (3, 3), padding=SAME3), "border", *REAL),
    "conv3x3_odd": _integer(Conv2d(2, 24, 13, 9, 40, (3, 3), padding=(0, 1, 2, 1)), "border", *STEPS),
    "conv3x3_strided": _integer(Conv2d(1, 32, 15, 17, 32, (3, 3), (2, 2), SAME3), "border", "offset", "real"),
    "conv1x1": _integer(Conv2d(1, 64, 7, 7, 48, (1, 1)), "offset", "real", "scale", "add", "relu"),
    "conv1x1_prime": _integer(Conv2d(1, 16, 17, 19, 40, (1, 1)), *STEPS),
    "first_layer": _integer(Conv2d(1, 3, 30, 26, 32, (7, 7), (2, 2), (3, 3, 3, 3)), "border", *STEPS),
    "grey_input": _integer(Conv2d(2, 1, 12, 12, 20, (5, 5)), *REAL),
    "depthwise": _integer(Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3, groups=32), "border", *STEPS),
    "depthwise_strided": _integer(Conv2d(2, 24, 15, 9, 24, (5, 3), (2, 1), (2, 1, 2, 1), groups=24), "real"),
    "depthwise_sums": _integer(Conv2d(1, 16, 9, 9, 16, (7, 7), groups=16)),
    "dense": _integer(Dense(1, 96, 100), "offset", "real", "scale", "bias"),
    "dense_rows": _integer(Dense(5, 33, 30), *REAL),
    "dense_steps": _integer(Dense(20, 30, 130), *STEPS),
}
needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


def _right(result: np.ndarray, expected: np.ndarray) -> bool:
    if np.issubdtype(result.dtype, np.integer):
        return same_integers(result, expected)
    return relative_error(result, expected) < 1e-6


@needs_dot_products
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_results_match_numpy(name: str) -> None:
    """Random operands of the whole range, data that all are 255, and zeros."""
    workload, target, rng = WORKLOADS[name], host_target(), random.Random(7)
    space = search_space(workload, target)
    assert space is not None
    (one,) = space.spaces
    template = template_named(one.template)
    assert isinstance(template, AnchorTemplate)
    kinds = anchor_operands(workload, 3)
    assert {kind.base for kind in anchor_kinds(workload.epilogue, INTEGERS, True, 3)} == set(kinds)
    for config in [one.seed_configs()[0], *filter(None, (one.sample(rng) for _ in range(2)))]:
        made = Compiled(template, workload, target, config)
        function = made.build()["main"]
        for inputs in kinds.values():
            expected = reference(workload, inputs)
            result = made.call(function, inputs, expected.shape)
            assert result.dtype == Types.of(workload).out
            assert _right(result, expected), dict(config.knobs)


@pytest.mark.parametrize(
    ("mcpu", "mtriple", "mattr", "instruction"),
    [
        ("cascadelake", "x86_64-linux-gnu", [], "vpdpbusd"),
        ("alderlake", "x86_64-linux-gnu", [], "vpdpbusd"),
        ("cortex-a76", "aarch64-linux-gnu", ["+i8mm"], "usdot"),
    ],
)
@pytest.mark.parametrize("name", ["conv3x3_border", "first_layer", "dense_rows"])
def test_compiles_to_dot_products(name: str, mcpu: str, mtriple: str, mattr: list[str], instruction: str) -> None:
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": mtriple, "mattr": mattr, "num-cores": 1})
    assert has_dot_products(target)
    space = search_space(WORKLOADS[name], target)
    assert space is not None
    config = space.seed_configs()[0]
    func = template_named(config.template).prim_func(WORKLOADS[name], target, config)
    assert instruction in build(func, target).inspect_source("asm")


def test_no_template_applies_without_dot_products() -> None:
    target = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 1})
    assert not has_dot_products(target)
    assert all(search_space(w, target) is None for name, w in WORKLOADS.items() if "depthwise" not in name)


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


def test_what_is_no_number_becomes_the_lowest_step() -> None:
    x = te.placeholder((5,), name="x")
    zero = te.placeholder((1,), name="zero")
    out = te.compute((5,), lambda i: apply(("quantize",), x[i], [zero[0]]).astype("uint8"))
    function = build(te.create_prim_func([x, zero, out]), host_target())["main"]
    values = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5], np.float32)
    tensors = [tvm.runtime.tensor(a) for a in (values, np.array([3], np.float32), np.zeros(5, np.uint8))]
    function(*tensors)
    assert tensors[-1].numpy().tolist() == [0, 255, 0, 3, 5]


def test_random_operands_are_of_the_whole_range() -> None:
    inputs = random_operands(WORKLOADS["conv3x3_border"], 0)
    assert (inputs.data.dtype, inputs.data.min(), inputs.data.max()) == (np.uint8, 0, 255)
    assert (inputs.weight.dtype, inputs.weight.min(), inputs.weight.max()) == (np.int8, -128, 127)
