"""Kernels by which the peak of integers is measured: their sums are exact, and their loops hold nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.target import Target

from templates.cpu.dot_products import products_of
from templates.cpu.isa import has_feature
from templates.lowering import build
from tests.templates.gpu.support import device_number
from tests.templates.support import host_target
from tuner.devices import open_device
from tuner.devices.integer_peak import VectorProducts, WordProducts, integer_multipliers
from tuner.devices.peak import peak_of
from tuner.report.hot_loop import in_assembly

FEATURES = {"haswell": "avx2", "skylake-avx512": "avx512bw", "cascadelake": "avx512vnni"}
STEPS = 36  # more than there are rounds of operands
ARM = {"usdot": "+v8.2a,+i8mm", "sdot": "+v8.2a,+dotprod", "smull": "+neon"}


def target_of(mcpu: str) -> Target:
    if not has_feature(host_target(), FEATURES[mcpu]):
        pytest.skip(f"this CPU has no {FEATURES[mcpu]}")
    return Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu, "num-cores": 1})


def result_of(kernel: VectorProducts | WordProducts, target: Target, place: tvm.runtime.Device) -> np.ndarray:
    *operands, out = (tvm.runtime.tensor(array, place) for array in kernel.operands())
    tvm.compile(kernel.prim_func(), target=target)["main"](*operands, out)
    return out.numpy()


@pytest.mark.parametrize("mcpu", FEATURES)
@pytest.mark.parametrize("tile", [(1, 2), (2, 6), (3, 8)])
def test_every_step_sums_its_products(mcpu: str, tile: tuple[int, int]):
    target = target_of(mcpu)
    unit = products_of(target)
    assert unit is not None
    kernel = VectorProducts(unit, 2, *tile, steps=STEPS)
    values, weights, _ = (array.astype(np.int64) for array in kernel.operands())
    rounds = [step % len(values) for step in range(STEPS)]
    expected = np.einsum("spk,sbvk->pbv", values[rounds], weights[rounds])
    expected = -expected if unit.held.negated else expected
    found = result_of(kernel, target, tvm.cpu())
    np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))
    assert kernel.flop == 2 * STEPS * found.size * unit.held.group


def test_every_word_is_multiplied_in_every_step():
    device = open_device(f"opencl:{device_number('pocl')}")
    kernel = replace(integer_multipliers(device)[0], steps=3)
    assert isinstance(kernel, WordProducts)
    expected = kernel.operands()[0].astype(np.int64)
    factors = np.array([0x01FF02FE], np.uint32).view(np.int8).astype(np.int64)
    for _ in range(3):
        products = expected.astype(np.int32).view(np.uint8).reshape(*expected.shape, 4).astype(np.int64) @ factors
        expected = expected + products
    np.testing.assert_array_equal(result_of(kernel, device.target, device.tvm_device()), expected.astype(np.int32))


@pytest.mark.parametrize("instruction", ARM)
def test_arm_multiplies_in_registers(instruction: str):
    target = Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ARM[instruction].split(","), "num-cores": 1}
    )
    unit = products_of(target)
    assert unit is not None
    loop = in_assembly(text := build(VectorProducts(unit, 1, 2, 6).prim_func(), target).inspect_source("asm"))
    assert loop is not None
    lines = text.splitlines()[loop.first : loop.last + 1]
    assert sum(f"\t{instruction}" in line for line in lines) == 4 * 2 * 6
    assert loop.stack_stores == 0  # of vectors: sums stay in registers


def test_a_cpu_has_a_peak_of_integers_if_it_multiplies_them():
    device = open_device("cpu", 1)
    peak = peak_of(device, "uint8")
    assert (peak is None) == (products_of(device.target) is None)
    if peak is not None:
        assert 1e9 < peak < 1e13
    plain = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "num-cores": 1})
    assert peak_of(replace(device, target=plain), "uint8") is None
    assert peak_of(replace(device, target=plain), "float16") is None
