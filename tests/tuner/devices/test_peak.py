"""The peak kernel runs its multiply-adds: their fixed point is one, and every lane gets there."""

from __future__ import annotations

import numpy as np
import tvm

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
