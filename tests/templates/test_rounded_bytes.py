"""Real numbers become bytes by one conversion on x86, with the results of rounding, adding and bounding in float32."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tvm import te, tirx
from tvm.target import Target

from templates.default import schedule
from templates.epilogue import apply
from templates.lowering import build
from templates.rounded_bytes import with_rounded_bytes
from tests.templates.cpu.integer_cpus import ARM, X86
from tests.templates.support import host_target

COUNT = 64


def _quantising(epilogue: tuple[str, ...]) -> tirx.PrimFunc:
    x, zero = te.placeholder((COUNT,), name="x"), te.placeholder((1,), "uint8", name="zero")
    out = te.compute((COUNT,), lambda i: apply(epilogue, tirx.convert(x[i]), [zero[0]]).astype("uint8"), name="out")
    return te.create_prim_func([x, zero, out]).with_attr("global_symbol", "main")


KERNELS = {
    epilogue: build(schedule(_quantising(epilogue), host_target()), host_target())["main"]
    for epilogue in (("quantize",), ("relu", "quantize"))
}
NUMBERS = st.one_of(st.floats(-300, 300, width=32), st.integers(-600, 600).map(lambda n: n / 2), st.floats(width=32))


@pytest.mark.parametrize("epilogue", KERNELS)
@given(values=arrays(np.float32, COUNT, elements=NUMBERS), zero=st.integers(0, 255))
def test_bytes_are_those_of_float32(epilogue: tuple[str, ...], values: np.ndarray, zero: int) -> None:
    tensors = [tvm.runtime.tensor(array) for array in (values, np.array([zero], np.uint8), np.zeros(COUNT, np.uint8))]
    KERNELS[epilogue](*tensors)
    real = np.maximum(values, np.float32(0)) if "relu" in epilogue else values
    with np.errstate(invalid="ignore"):
        steps = np.clip(np.rint(real) + np.float32(zero), 0, 255)
    expected = np.where(np.isnan(values), 0, steps).astype(np.uint8)
    np.testing.assert_array_equal(tensors[-1].numpy(), expected)


@st.composite
def divisions(draw: st.DrawFn) -> tuple[float, np.ndarray]:
    """A scale, and numbers whose quotients are near what lies between two steps, and anything else."""
    scale = np.float32(draw(st.floats(2.0**-30, 2.0**10, width=32)))
    halves = np.array(draw(st.lists(st.integers(-600, 600), min_size=COUNT, max_size=COUNT)), np.float32) / 2
    numbers = (halves * scale).astype(np.float32)
    numbers = (numbers.view(np.int32) + draw(st.integers(-2, 2))).view(np.float32)
    others = draw(arrays(np.float32, COUNT, elements=NUMBERS))
    return float(scale), np.where(np.arange(COUNT) % 4 == 0, others, numbers).astype(np.float32)


@given(divisions())
@settings(max_examples=60)
def test_quotients_are_those_of_a_division(given_: tuple[float, np.ndarray]) -> None:
    scale, values = given_
    x = te.placeholder((COUNT,), name="x")

    def value(i: tirx.Var) -> tirx.Expr:
        steps = tirx.nearbyint(x[i] / tirx.const(scale, "float32")) + tirx.const(7, "float32")
        return tirx.min(tirx.max(steps, tirx.const(0, "float32")), tirx.const(255, "float32")).astype("uint8")

    func = schedule(te.create_prim_func([x, te.compute((COUNT,), value)]), host_target())
    kernel = build(func.with_attr("global_symbol", "main"), host_target())["main"]
    result = tvm.runtime.tensor(np.zeros(COUNT, np.uint8))
    kernel(tvm.runtime.tensor(values), result)
    with np.errstate(all="ignore"):
        steps = np.clip(np.rint(values / np.float32(scale)) + np.float32(7), 0, 255)
    np.testing.assert_array_equal(result.numpy(), np.where(np.isnan(values), 0, steps).astype(np.uint8))


def test_a_division_takes_products() -> None:
    x = te.placeholder((COUNT,), name="x")

    def text(scale: float) -> str:
        def value(i: tirx.Var) -> tirx.Expr:
            steps = tirx.nearbyint(x[i] / tirx.const(scale, "float32"))
            return tirx.min(tirx.max(steps, tirx.const(0, "float32")), tirx.const(255, "float32")).astype("uint8")

        target = X86["vpmaddwd 256"]
        return str(
            build(schedule(te.create_prim_func([x, te.compute((COUNT,), value)]), target), target).inspect_source("asm")
        )

    assert "vdivps" not in text(0.0372)
    assert "vdivps" in text(float(np.float32(2 - 2.0**-23)))  # all digits are ones


@pytest.mark.parametrize("name", X86)
def test_a_byte_takes_one_conversion_of_a_vector(name: str) -> None:
    target = X86[name]
    text = build(schedule(_quantising(("quantize",)), target), target).inspect_source("asm")
    assert "vcvtps2dq" in text
    assert not re.search("vroundps|vrndscaleps|vcvttps2dq", text)


@pytest.mark.parametrize("target", [target for target, _ in ARM.values()], ids=ARM)
def test_other_processors_keep_float32(target: Target) -> None:
    func = schedule(_quantising(("quantize",)), target)
    assert with_rounded_bytes(func, target).same_as(func)


@pytest.mark.parametrize(("point", "changes"), [(3.0, True), (2.5, False), (-1.0, False), (256.0, False)])
def test_only_zero_points_of_bytes_are_added_in_integers(point: float, changes: bool) -> None:
    x = te.placeholder((COUNT,), name="x")

    def value(i: tirx.Var) -> tirx.Expr:
        steps = tirx.nearbyint(x[i]) + tirx.const(point, "float32")
        return tirx.min(tirx.max(steps, tirx.const(0, "float32")), tirx.const(255, "float32")).astype("uint8")

    target = X86["vpmaddwd 256"]
    func = schedule(te.create_prim_func([x, te.compute((COUNT,), value)]), target)
    assert with_rounded_bytes(func, target).same_as(func) != changes
