"""ONNX's backend suite: each case is right, or refused in one line, as expected.txt says."""

from __future__ import annotations

import pytest

from tests.onnx_suite.cases import case_named, names
from tests.onnx_suite.expectations import expectations
from tests.onnx_suite.outcome import PASS, REFUSED, outcome_of
from tests.templates.gpu.support import Driver, driver
from tests.templates.support import host_target

EXPECTED = expectations()
# What vision networks are made of: these run on a GPU's kernels too.
VISION = (
    "affine_grid", "averagepool", "batchnorm", "center_crop_pad", "clip", "col2im", "conv", "deform_conv",
    "depthtospace", "globalaveragepool", "globalmaxpool", "gridsample", "group_normalization", "hardsigmoid",
    "hardswish", "instancenorm", "layer_normalization", "leakyrelu", "lppool", "lrn", "maxpool", "maxunpool",
    "mish", "nonmaxsuppression", "prelu", "resize", "roialign", "softmax", "spacetodepth", "swish", "top_k",
    "upsample",
)  # fmt: skip
# OpenCL's division is off by up to 2.5 units of the last digit: two boxes whose overlap is the very threshold are kept
# or not by that.
_BY_A_DIGIT = "node/test_nonmaxsuppression_iou_threshold_boundary"
ON_GPU = [
    name for name in EXPECTED if name.startswith(tuple(f"node/test_{kind}" for kind in VISION)) and name != _BY_A_DIGIT
]


@pytest.mark.night
def test_every_case_is_expected() -> None:
    assert list(EXPECTED) == names()


def test_nothing_is_expected_but_to_pass_or_to_be_refused() -> None:
    assert {outcome.status for outcome in EXPECTED.values()} <= {PASS, REFUSED}
    assert all(outcome.reason for outcome in EXPECTED.values() if outcome.status == REFUSED)
    passed = sum(o.status == PASS for name, o in EXPECTED.items() if name.startswith("node/"))
    assert passed >= 1450


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", EXPECTED)
def test_on_the_cpu(name: str) -> None:
    found, expected = outcome_of(case_named(name), host_target()), EXPECTED[name]
    assert found.status in (PASS, REFUSED), found.reason
    assert (found.status, name) == (expected.status, name), (
        f"{found.reason}; if this is better than before: python -m tests.onnx_suite.expectations"
    )


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", ON_GPU)
def test_on_pocl(name: str) -> None:
    pocl: Driver = driver("pocl")
    found = outcome_of(case_named(name), pocl.target(), pocl.device)
    assert (found.status, name) == (EXPECTED[name].status, name), found.reason
