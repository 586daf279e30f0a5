"""Resized images stay in blocked layout, and are what onnx makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import (
    Net,
    assert_as_onnxruntime,
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


def of_scales(*scales: float) -> dict[str, np.ndarray]:
    return {"scales": np.array(scales, np.float32)}


def of_sizes(*sizes: int) -> dict[str, np.ndarray]:
    return {"sizes": np.array(sizes, np.int64)}


CUBIC, LINEAR = {"mode": "cubic"}, {"mode": "linear"}
OTHERS: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "axes and sizes": (of_sizes(9, 4), {"axes": [3, 2]}),
    "axes and scales": (of_scales(1.5, 2.0), {"axes": [2, 3], **LINEAR}),
    "not larger": (of_sizes(12, 5), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", **LINEAR}),
    "not smaller": (of_sizes(12, 5), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
    "symmetric": (of_scales(1, 1, 1.7, 0.6), {"coordinate_transformation_mode": "half_pixel_symmetric", **LINEAR}),
    "tf nearest": (of_scales(1, 1, 1.7, 2), {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}),
    "corners of one pixel": (of_sizes(2, 3, 1, 1), {"coordinate_transformation_mode": "align_corners", **LINEAR}),
    "corners of no whole pixel": (
        of_scales(1, 1, 1.5, 1.5),
        {"coordinate_transformation_mode": "align_corners", **LINEAR},
    ),
    "antialiased": (of_scales(1, 1, 0.6, 0.8), {"antialias": 1, **LINEAR}),
    "antialiased to sizes": (of_sizes(2, 3, 3, 9), {"antialias": 1, **LINEAR}),
    "antialiased cubic": (of_scales(1, 1, 0.6, 0.5), {"antialias": 1, **CUBIC}),
    "antialiased inside": (of_scales(1, 1, 0.6, 0.5), {"antialias": 1, "exclude_outside": 1, **CUBIC}),
    "weights inside": (of_scales(1, 1, 1.5, 1.5), {"exclude_outside": 1, **CUBIC}),
    "channels": (of_scales(1, 2, 1, 1), {}),
    "images and channels": (of_scales(2, 0.67, 1, 1), {"nearest_mode": "ceil"}),
    "the last axes of NHWC": (of_scales(1, 2, 2, 1), LINEAR),
    "a cut": (
        {**of_sizes(2, 3, 5, 4), "roi": np.array([0, 0, 0.2, -0.3, 1, 1, 0.7, 1.2], np.float32)},
        {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0, **LINEAR},
    ),
    "1.3": (of_scales(1, 1, 1.3, 1.9), {}),
    "0.7": (of_scales(1, 1, 0.7, 0.7), {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    "1.7": (of_scales(1, 1, 1.7, 1.2), {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_every_attribute(tmp_path: Path, case: str) -> None:
    operands, attrs = OTHERS[case]
    net = Net(opset=19)
    reads = [net.constant(operands[name]) if name in operands else "" for name in ("roi", "scales", "sizes")]
    check(net, net.op("Resize", net.input(2, 3, 10, 7), *reads, **attrs), tmp_path)


def check(net: Net, out: str, folder: Path) -> None:
    assert_as_onnxruntime(net, folder, out, x=np.random.default_rng(0).standard_normal((2, 3, 10, 7), np.float32))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (1.5, 2.3), (0.6, 1.0)])
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_older_operator_sets(tmp_path: Path, opset: int, scales: tuple[float, float], mode: str) -> None:
    if opset < 10 and min(scales) < 1:
        pytest.skip("Upsample makes images larger")
    net, factors = Net(opset=opset), [1.0, 1.0, *scales]
    x = net.input(2, 3, 10, 7)
    if opset == 7:
        out = net.op("Upsample", x, mode=mode, scales=factors)
    else:
        scale = net.constant(np.array(factors, np.float32))
        out = net.op("Resize" if opset == 10 else "Upsample", x, scale, mode=mode)
    check(net, out, tmp_path)


def test_empty_scales_beside_sizes(tmp_path: Path) -> None:
    net = Net(opset=11)
    empty = net.constant(np.zeros(0, np.float32))
    sizes = net.constant(np.array([2, 3, 20, 21]))
    check(net, net.op("Resize", net.input(2, 3, 10, 7), empty, empty, sizes), tmp_path)


def test_sizes_that_are_computed_are_refused(tmp_path: Path) -> None:
    net = Net()
    x = net.input(2, 3, 10, 7)
    scales = net.op("ReduceMax", x, axes=[1, 2, 3], keepdims=0)
    with pytest.raises(BadInput, match=r"\(Resize\) cannot be converted: its scales or sizes have to be constants"):
        net.graph(tmp_path, net.op("Resize", x, "", net.op("Concat", scales, scales, axis=0)))
