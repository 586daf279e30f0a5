"""Other libraries' kernels: right numbers on every workload, the right weights whatever lies where."""

from __future__ import annotations

from ctypes.util import find_library
from importlib.util import find_spec

import numpy as np
import pytest
import tvm
from tvm.target import Target

from templates.reference import random_operands, reference, relative_error
from tests.templates.support import CPU, Compiled, host_target
from tests.templates.workloads import WORKLOADS
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.vendors import VENDORS, open_vendor, require, vendor_template

MODULES = {"onnxruntime": "onnxruntime", "onednn": "torch"}


def is_here(vendor: str) -> bool:
    return find_library(vendor) is not None if vendor not in MODULES else find_spec(MODULES[vendor]) is not None


@pytest.fixture(params=sorted(VENDORS))
def vendor(request: pytest.FixtureRequest) -> str:
    if not is_here(request.param):
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


def compiled(vendor: str, name: str) -> Compiled:
    gpu = open_device("opencl:0") if vendor == "clblast" else None
    workload, target = WORKLOADS[name], host_target() if gpu is None else gpu.target
    template = vendor_template(vendor, workload)
    space = template.space(workload, target)
    if space is None:
        pytest.skip("does not compute it")
    (config,) = space.seed_configs()
    assert list(space) == [config]
    return Compiled(template, workload, target, config, CPU if gpu is None else gpu.tvm_device())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_results_match_float64(vendor: str, name: str) -> None:
    assert compiled(vendor, name).error() < 3e-5


@pytest.mark.parametrize("name", ["conv3x3", "dense_rows"])
def test_weights_are_known_by_what_they_are(vendor: str, name: str) -> None:
    """Other weights where the first ones lay, and the first ones elsewhere: every call has its own result."""
    kernel = compiled(vendor, name)
    function = kernel.build()["main"]
    for seed in (0, 1, 0, 2, 1):
        inputs = random_operands(kernel.workload, seed)
        expected = reference(kernel.workload, inputs)
        assert relative_error(kernel.call(function, inputs, expected.shape), expected) < 3e-5


def test_weights_that_change_in_place(vendor: str) -> None:
    kernel = compiled(vendor, "conv3x3")
    function, layout = kernel.build()["main"], kernel.template
    tensors = None
    for seed in (0, 1, 2):
        inputs = random_operands(kernel.workload, seed)
        weight = layout.pack_weight(kernel.workload, kernel.target, kernel.config, inputs.weight)
        extra = [layout.pack_bias(kernel.workload, kernel.target, a) if a.ndim == 1 else a for a in inputs.extra]
        arrays = [inputs.data, weight, *extra]
        if tensors is None:
            tensors = [tvm.runtime.tensor(a, kernel.device) for a in arrays]
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.copyfrom(array)
        expected = reference(kernel.workload, inputs)
        out = tvm.runtime.empty(expected.shape, "float32", kernel.device)
        function(*tensors, out)
        assert relative_error(out.numpy(), expected) < 3e-5


def test_what_is_asked_for_in_vain() -> None:
    with pytest.raises(BadInput, match=r"unknown vendor 'mkl' \(known: onnxruntime, onednn, clblast\)"):
        open_vendor("mkl")
    with pytest.raises(BadInput, match=r"calls onnxruntime 0\.1, here is"):
        require({"onnxruntime": "0.1"})


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_a_library_that_is_not_here() -> None:
    with pytest.raises(BadInput, match=r"vendor onednn: No module named 'torch'; pip install 'edgetune\[torch\]'"):
        open_vendor("onednn")


def test_each_has_its_devices_and_float32(vendor: str) -> None:
    template = vendor_template(vendor, WORKLOADS["conv3x3"])
    wrong = host_target() if vendor == "clblast" else Target({"kind": "opencl"})
    assert template.space(WORKLOADS["conv3x3"], wrong) is None
    assert "float16" not in template.dtypes
    assert np.float32 == np.dtype(template.dtypes[0])
