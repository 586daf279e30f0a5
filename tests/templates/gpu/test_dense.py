"""Dense layers on GPUs, where tiles divide neither rows nor inputs."""

from __future__ import annotations

import pytest

from templates.gpu.dense import GpuDense
from templates.workloads import Dense
from tests.templates.gpu.support import driver
from tests.templates.support import Compiled
from tuning_db.record import Config


@pytest.mark.parametrize("ks", [1, 4])
def test_nothing_behind_the_inputs_is_taken_in(ks: int) -> None:
    """A value of them that is no number would make a sum none, even if its weight is zero."""
    found, workload = driver("pocl"), Dense(7, 37, 8).workload(("bias",))
    target = found.like_nvidia()  # its kernels share sums
    space = GpuDense().space(workload, target)
    assert space is not None
    first = space.seed_configs()[0]
    config = Config(GpuDense.name, {**first.knobs, "ri": 1, "rt": 4, "nb": 1, "ot": 2, "vec": 4, "ks": ks, "ki": 4})
    assert space.why_invalid(config) is None
    assert Compiled(GpuDense(), workload, target, config, found.device).error() < 2e-6
