"""Which devices store halves, and the one line for those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from templates.gpu.limits import gpu_target
from tests.templates.gpu.support import GPUS, HOST
from tuner.devices import check_storage
from tuner.errors import BadInput


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_every_device_stores_single_precision_and_integers(dtype: str) -> None:
    for target in (HOST, *(gpu_target(limits, HOST) for limits in GPUS.values() if limits.kind == "opencl")):
        check_storage(dtype, target, "it")


@pytest.mark.parametrize("name", ["mali", "intel"])
def test_a_gpu_with_half_precision(name: str) -> None:
    check_storage("float16", gpu_target(GPUS[name], HOST), name)
    with pytest.raises(BadInput, match="float16 on opencl:3: this device cannot store halves"):
        check_storage("float16", gpu_target(replace(GPUS[name], fp16=False), HOST), "opencl:3")


def test_a_cpu() -> None:
    with pytest.raises(BadInput, match="float16 on cpu: this CPU has no arithmetic in halves"):
        check_storage("float16", HOST, "cpu")
