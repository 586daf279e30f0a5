"""Quantised networks on OpenCL devices multiply integers there, with the numbers that onnxruntime gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from templates.integers import INTEGERS
from tests.templates.gpu.support import GPUS, driver, gpu
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, calls
from tests.tuner.graph.quantised import (
    DETECTOR_SHAPE,
    RESIDUAL_SHAPE,
    assert_within_a_step,
    detecting,
    quantise,
    residual,
)
from tuner.graph import fuse, load_onnx, multiplies_integers

MOBILE_SHAPE = (1, 3, 20, 20)


def _mobile(path: Path) -> Path:
    """Depthwise convolutions with strides, and channels that fill no block."""
    net = Net(seed=4)
    x = net.op("Clip", net.conv(net.input(*MOBILE_SHAPE), (3, 18), 3, strides=[2, 2], pads=[1] * 4), *_six(net))
    x = net.op("Clip", net.conv(x, (1, 18), 3, group=18, pads=[1] * 4, strides=[2, 2]), *_six(net))
    x = net.op("Clip", net.conv(x, (18, 30), 1), *_six(net))
    return net.save(path, net.conv(x, (1, 30), 3, group=30, pads=[1] * 4))


def _six(net: Net) -> tuple[str, str]:
    return net.scalar(0), net.scalar(6)


NETWORKS = {
    "residual": (residual, RESIDUAL_SHAPE),
    "detector": (detecting, DETECTOR_SHAPE),  # with tables of bytes, and bytes that are moved
    "mobile": (_mobile, MOBILE_SHAPE),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shared", [False, True], ids=["pocl", "as-nvidia"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_those_of_onnxruntime(name: str, shared: bool, tmp_path: Path) -> None:
    write, shape = NETWORKS[name]
    path = quantise(write(tmp_path / "float.onnx"), tmp_path / "net.onnx", shape, signed=shared)
    here = driver("pocl")
    target = here.like_nvidia() if shared else here.target()
    assert {a.workload.dtype for a in fuse(load_onnx(path), integers=True).anchors} == {INTEGERS}
    assert_within_a_step(path, shape, optimised=True, target=target, device=here.device)


def test_bytes_stay_in_blocks_between_layers(tmp_path: Path) -> None:
    path = quantise(_mobile(tmp_path / "float.onnx"), tmp_path / "net.onnx", MOBILE_SHAPE)
    named = calls(fuse(load_onnx(path), integers=True), gpu("mali"))
    assert sum("to_plain" in name or "to_blocked" in name for name in named) == 1  # the result


@pytest.mark.parametrize("name", GPUS)
def test_one_gpu_that_multiplies_bytes_computes_in_integers(name: str) -> None:
    """By dp4a, Arm's or Khronos's extension. Shifts take longer than float32."""
    assert multiplies_integers([gpu(name)]) == (name in ("orin", "mali", "intel"))
    assert not multiplies_integers([gpu(name), host_target()])
