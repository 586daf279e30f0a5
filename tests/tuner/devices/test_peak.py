"""The peak kernel runs its multiply-adds: their fixed point is one, and every lane gets there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm
from tvm.target import Target

from tuner.devices import open_device, peak


def test_every_lane_runs_every_step():
    device = open_device("cpu", 1)
    multiplier = peak.fma_kernel(device, 1e-3)
    start = tvm.runtime.tensor(np.random.default_rng(0).random(multiplier.shape, dtype=np.float32))
    out = tvm.runtime.empty(multiplier.shape, "float32")
    tvm.compile(multiplier.prim_func(), target=device.target)["main"](start, out)
    assert multiplier.steps > 10_000
    np.testing.assert_allclose(out.numpy(), 1, rtol=1e-3)


def test_peak_is_that_of_a_vector_unit():
    """Any core with vectors of four and a clock of half a gigahertz does more than one operation a nanosecond; a
    thousand are beyond any core."""
    assert 1e9 < peak.fma_peak(open_device("cpu", 1)) < 1e12


def test_halves_fill_vectors_of_arm():
    """Twelve chains of eight halves are as many registers, and each step multiplies and adds in one instruction."""
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+v8.2a", "+fullfp16"], "num-cores": 1})
    kernel = peak.multipliers(replace(open_device("cpu", 1), target=target), "float16")[0]
    text = tvm.compile(kernel.prim_func(), target=target).mod.inspect_source("asm")
    assert text.count("\tfmla\t") >= 12
    assert ".8h" in text
