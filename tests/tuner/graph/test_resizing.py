"""Resized images stay in blocked layout, and are what onnx makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import (
    Net,
    assert_close,
    assert_computes,
    conversions,
    expected,
    random_inputs,
    run,
)
from tests.vision_ops.support import Place, place
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import OperatorStep, halved

__all__ = ["place"]
RULES = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest pixel": {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "linear to the corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "linear as torch has it": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    "cubic": {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75},
}


def resized(channels: int, scales: tuple[float, float], rule: str) -> tuple[Net, str]:
    """Between two convolutions."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(2, 3, 6, 5), (3, channels), 1))
    x = net.op("Resize", x, "", net.constant(np.array([1, 1, *scales], np.float32)), **RULES[rule])
    return net, net.conv(x, (channels, 20), pads=[1, 1, 1, 1])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 0.6)])
@pytest.mark.parametrize("rule", RULES)
def test_images_of_any_size(tmp_path: Path, rule: str, scales: tuple[float, float]) -> None:
    for channels in (16, 5):
        net, output = resized(channels, scales, rule)
        assert_computes(net, tmp_path, Place.named("host").target, [output])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", ["nearest", "linear"])
def test_they_stay_blocked_on_every_device(tmp_path: Path, place: Place, rule: str) -> None:
    net, output = resized(16, (2.0, 2.0), rule)
    graph = assert_computes(net, tmp_path, place.target, [output], device=place.device)
    assert conversions(graph, place.target) <= 2  # what comes in, and what goes out


def test_an_upsampled_map_joins_another_without_a_conversion(tmp_path: Path) -> None:
    """As in YOLOv3, where the kernel that joins them resizes as well."""
    net, target = Net(), Place.named("host").target
    fine = net.op("LeakyRelu", net.conv(net.input(1, 3, 12, 8), (3, 32), 1), alpha=0.1)
    coarse = net.conv(fine, (32, 16), 2, strides=[2, 2])
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    joined = net.op("Concat", net.op("Resize", coarse, "", scales, **RULES["nearest"]), fine, axis=1)
    graph = assert_computes(net, tmp_path, target, [net.conv(joined, (48, 16), 1)])
    assert conversions(graph, target) <= 1


@pytest.mark.parametrize("rule", ["nearest", "linear", "cubic"])
def test_halves(tmp_path: Path, rule: str) -> None:
    device = open_device(f"opencl:{device_number('intel')}")
    net, output = resized(16, (2.0, 1.2), rule)
    graph = halved(net.graph(tmp_path, output))
    inputs = random_inputs(graph)
    results = run(graph, device.target, inputs, device=device.tvm_device())
    assert_close(results, expected(net.model(output), inputs), 5e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", sorted(RULES.keys() - {"linear to the corners"}))
def test_scales_that_make_no_whole_pixels(tmp_path: Path, place: Place, rule: str) -> None:
    """The pixels lie where the scales say, not the ratio of the sizes: a template's operator knows."""
    net, output = resized(16, (1.7, 1.5), rule)
    graph = assert_computes(net, tmp_path, place.target, [output], device=place.device)
    assert [step.workload.op for step in graph.steps if isinstance(step, OperatorStep)] == ["resize"]


@pytest.mark.parametrize(
    "attrs", [{"mode": "cubic", "exclude_outside": 1}, RULES["linear to the corners"]], ids=["weights", "corners"]
)
def test_what_is_neither_is_refused(tmp_path: Path, attrs: dict) -> None:
    net = Net()
    x = net.conv(net.input(2, 3, 6, 5), (3, 16), 1)
    scales = net.constant(np.array([1, 1, 1.5, 1.5], np.float32))
    x = net.op("Resize", x, "", scales, **attrs)
    with pytest.raises(BadInput, match=r"Resize.*: scales .* make no whole pixels of \[2, 16, 6, 5\]"):
        net.graph(tmp_path, x)
