"""Operators of which TVM's converter has other results, or none, have onnxruntime's: values, shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_as_onnxruntime, calls, lowered, run
from tuner.errors import BadInput

Image = Callable[..., np.ndarray]


def image(*shape: int, mean: float = 0.0, dtype: type = np.float32) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) + mean).astype(dtype)


@pytest.mark.parametrize("size", [1.0, 1e-4, 30.0])
@pytest.mark.parametrize("kind", ["Sinh", "Cosh", "Asinh", "Erf"])
def test_functions(tmp_path: Path, kind: str, size: float) -> None:
    net, x = Net(), np.float32(size) * image(3, 5)
    assert_as_onnxruntime(net, tmp_path, net.op(kind, net.input(3, 5)), tolerance=1e-7 * size, x=x)


def test_a_clip_whose_bounds_are_crossed(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Clip", net.input(3, 5), net.scalar(2.0), net.scalar(-1.0))
    assert_as_onnxruntime(net, tmp_path, out, x=image(3, 5))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_casts_to_integers(tmp_path: Path, source: type, kind: str) -> None:
    """What is in the range is as in onnxruntime. Of other numbers the remainder is taken, also as there where the type
    has less than 32 bits, and what is not finite becomes 0."""
    info, net = np.iinfo(kind), Net()
    ends = np.array([info.min, info.max, info.max // 2], np.float64) * (1 - 2.0**-20)
    fine = np.concatenate([[0.0, -0.0, 0.4, 0.9, 1.5, 17.99], ends, [-0.9, -1.5, -17.99]]).astype(source)
    fine = fine[np.trunc(fine) >= info.min]
    wrong = np.array([np.nan, np.inf, -np.inf], source)
    beyond = np.array([256.5, -129.5, 70001.0, -40000.0, 2.0**31 - 128], source)
    single = TensorProto.FLOAT if source is np.float32 else TensorProto.DOUBLE
    x = net.input(len(fine) + 8, dtype=single)
    number = net.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    out = net.op("Cast", number, to=TensorProto.DOUBLE)
    graph = net.graph(tmp_path, out)
    found = run(graph, host_target(), {"x": np.concatenate([fine, beyond, wrong])})[out]
    np.testing.assert_array_equal(found[: len(fine)], np.trunc(fine))
    np.testing.assert_array_equal(found[len(fine) : -3], beyond.astype(np.int64).astype(kind))
    np.testing.assert_array_equal(found[-3:], 0)
    assert len(calls(graph, host_target())) == 1
    inside = np.concatenate([fine, np.zeros(8, source)])
    assert_as_onnxruntime(net, tmp_path, out, x=inside)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_what_is_quantised_is_written_once(tmp_path: Path, kind: str) -> None:
    """A quantisation is one kernel, whose values are in registers until they are integers. onnxruntime makes the least
    integer of a NaN."""
    net = Net()
    scale, zero = net.scalar(0.02), net.constant(np.array(3, kind))
    narrow = net.op("QuantizeLinear", net.input(3, 5, 16), scale, zero)
    out = net.op("DequantizeLinear", narrow, scale, zero)
    x = image(3, 5, 16)
    x[0, 0, :6] = np.inf, -np.inf, 1e30, -1e30, -0.06, 0.03
    assert_as_onnxruntime(net, tmp_path, out, x=x)
    graph = net.graph(tmp_path, out)
    assert len(calls(graph, host_target())) == 1
    (func,) = (f for name, f in lowered(graph, host_target()).module.functions.items() if name.name_hint != "main")
    assert "sblock_alloc_buffer" not in func.script()
    x[1, 1, 1] = np.nan
    least = np.float32((np.iinfo(kind).min - 3) * 0.02)
    assert run(graph, host_target(), {"x": x})[out][1, 1, 1] == least


@pytest.mark.parametrize("exponent", [np.int64(3), np.int32(2), np.float32(1.5)])
def test_powers_have_the_bases_type(tmp_path: Path, exponent: Any) -> None:
    net = Net()
    out = net.op("Pow", net.input(3, 5), net.constant(np.array(exponent)))
    assert_as_onnxruntime(net, tmp_path, out, x=np.abs(image(3, 5)))


def test_powers_of_integers(tmp_path: Path) -> None:
    net = Net()
    x = net.input(5, dtype=TensorProto.INT64)
    out = net.op("Pow", x, net.constant(np.array(3, np.int64)))
    assert_as_onnxruntime(net, tmp_path, out, x=np.array([-3, 0, 1, 7, 100]))


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("values", [np.array([0, 1], np.float32), np.array([5, -2], np.int64)])
def test_one_hot(tmp_path: Path, values: np.ndarray, axis: int) -> None:
    net = Net()
    x = net.input(2, 3, dtype=TensorProto.INT64)
    out = net.op("OneHot", x, net.constant(np.array(4)), net.constant(values), axis=axis)
    assert_as_onnxruntime(net, tmp_path, out, x=np.array([[0, 3, -1], [4, 2, -4]]))


@pytest.mark.parametrize("attrs", [{}, {"detect_negative": 0}, {"detect_positive": 0}])
def test_infinities_are_found(tmp_path: Path, attrs: dict[str, int]) -> None:
    net = Net()
    out = net.op("IsInf", net.input(4), **attrs)
    assert_as_onnxruntime(net, tmp_path, out, x=np.array([1, np.inf, -np.inf, np.nan], np.float32))


@pytest.mark.parametrize("attrs", [{"output_shape": [10, 9]}, {"output_shape": [12, 13]}, {"auto_pad": "SAME_LOWER"}])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions(tmp_path: Path, group: int, attrs: dict[str, Any]) -> None:
    net = Net()
    out = net.op("ConvTranspose", net.input(1, 4, 5, 6), net.weight(4, 3, 3, 3), group=group, strides=[2, 2], **attrs)
    assert_as_onnxruntime(net, tmp_path, out, x=image(1, 4, 5, 6))


POOLS = {
    "same": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    "dilated": {"kernel_shape": [3, 3], "strides": [2, 1], "dilations": [2, 2], "auto_pad": "SAME_LOWER"},
    "padded": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "begun": {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1},
}


@pytest.mark.parametrize("attrs", POOLS)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
def test_pools(tmp_path: Path, kind: str, attrs: str) -> None:
    if kind == "AveragePool" and attrs == "dilated":
        pytest.skip("onnxruntime refuses it")
    net = Net(opset=19)
    assert_as_onnxruntime(net, tmp_path, net.op(kind, net.input(2, 3, 9, 10), **POOLS[attrs]), x=image(2, 3, 9, 10))


@pytest.mark.parametrize("attrs", POOLS)
def test_where_the_largest_values_are(tmp_path: Path, attrs: str) -> None:
    net = Net()
    out = net.op("MaxPool", net.input(2, 3, 9, 10), outputs=2, **POOLS[attrs])
    # Some are equal: the first counts.
    assert_as_onnxruntime(net, tmp_path, out, f"{out}_1", x=np.round(image(2, 3, 9, 10)))


def test_what_layer_normalization_has_besides(tmp_path: Path) -> None:
    net = Net()
    out = net.op("LayerNormalization", net.input(2, 6, 5), net.weight(5), net.weight(5), outputs=3)
    assert_as_onnxruntime(net, tmp_path, out, f"{out}_1", f"{out}_2", x=image(2, 6, 5))


def test_a_large_mean_costs_no_digits(tmp_path: Path) -> None:
    """onnxruntime's own float32 is off here: against float64."""
    x = image(1, 3, 40, 50, mean=1000.0)
    net = Net()
    graph = net.graph(tmp_path, net.op("MeanVarianceNormalization", net.input(1, 3, 40, 50)))
    (found,) = run(graph, host_target(), {"x": x}).values()
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_extremes_of_infinities_and_of_truth(tmp_path: Path, kind: str) -> None:
    infinite = np.array([[-np.inf, -np.inf], [np.inf, np.inf], [1, -np.inf], [np.inf, 2]], np.float32)
    net = Net(opset=20)
    axes = net.constant(np.array([1]))
    assert_as_onnxruntime(net, tmp_path, net.op(kind, net.input(4, 2), axes), x=infinite)
    net = Net(opset=20)
    out = net.op(kind, net.input(4, 2, dtype=TensorProto.BOOL), net.constant(np.array([1])), keepdims=0)
    assert_as_onnxruntime(net, tmp_path, out, x=infinite > 0)


def test_dropout_says_that_all_is_kept(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Dropout", net.input(2, 3), net.scalar(0.0), net.constant(np.array(True)), outputs=2)
    assert_as_onnxruntime(net, tmp_path, out, f"{out}_1", x=image(2, 3))


def test_dropout_in_training_is_refused(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Dropout", net.input(2, 3), net.scalar(0.5), net.constant(np.array(True)))
    with pytest.raises(BadInput, match="drops values at random, as in training"):
        net.graph(tmp_path, out)


def test_the_largest_of_a_regions_weighted_pixels(tmp_path: Path) -> None:
    net = Net()
    maps = net.constant(np.zeros(2, np.int64))
    regions = net.constant(np.array([[0, 0, 3, 3], [1, 1, 4.5, 7]], np.float32))
    sizes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    out = net.op("RoiAlign", net.input(1, 2, 6, 6), regions, maps, mode="max", **sizes)
    assert_as_onnxruntime(net, tmp_path, out, x=image(1, 2, 6, 6))


def test_slices_whose_bounds_are_attributes(tmp_path: Path) -> None:
    net = Net(opset=9)
    out = net.op("Slice", net.input(2, 3, 4, 5), starts=[1, -3], ends=[100, -1], axes=[2, 3])
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 3, 4, 5))


@pytest.mark.parametrize("end", [2**63 - 1, 2**31 - 1, 2**40])
@pytest.mark.parametrize("start", [0, 1])
def test_every_other_pixel_to_the_end(tmp_path: Path, start: int, end: int) -> None:
    """As the first layer of YOLOX cuts its input; exporters write the largest integer for the end."""
    net = Net()
    out = net.op("Slice", net.input(2, 3, 6, 7), *(net.constant(np.array([value])) for value in (start, end, 3, 2)))
    assert_as_onnxruntime(net, tmp_path, out, x=image(2, 3, 6, 7))


@pytest.mark.parametrize(("start", "end"), [(3, 2), (2, 2), (9, 1)])
def test_a_slice_of_nothing_joined_with_something(tmp_path: Path, start: int, end: int) -> None:
    net = Net()
    x = net.input(2, 3, 4, 5)
    nothing = net.op("Slice", x, *(net.constant(np.array([value])) for value in (start, end, 3)))
    assert_as_onnxruntime(net, tmp_path, net.op("Concat", x, nothing, axis=3), x=image(2, 3, 4, 5))


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (2, 0, 3), (0, 0, 5)])
def test_a_split_with_parts_of_no_entries(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    net = Net()
    out = net.op("Split", net.input(2, 5), net.constant(np.array(sizes)), outputs=len(sizes), axis=1)
    parts = [out if i == 0 else f"{out}_{i}" for i in range(len(sizes))]
    joined = net.op("Concat", *reversed(parts), axis=1)
    first = net.op("Slice", parts[-1], *(net.constant(np.array([value])) for value in (0, 1, 0)))
    assert_as_onnxruntime(net, tmp_path, joined, first, *parts, x=np.arange(10, dtype=np.float32).reshape(2, 5))


def test_slopes_for_each_channel(tmp_path: Path) -> None:
    """onnxruntime has no sets before 7."""
    net, x = Net(opset=6), image(2, 3, 4, 5)
    slopes = np.array([0.5, -2, 3], np.float32)
    graph = net.graph(tmp_path, net.op("PRelu", net.input(2, 3, 4, 5), net.constant(slopes)))
    (found,) = run(graph, host_target(), {"x": x}).values()
    np.testing.assert_allclose(found, np.where(x < 0, x * slopes.reshape(3, 1, 1), x), rtol=1e-6)


def test_detections_of_constant_scores(tmp_path: Path) -> None:
    """What has constant operands alone is computed when the model is loaded."""
    net = Net()
    scores = net.constant(np.array([[[0.9, 0.75, 0.6]]], np.float32))
    limits = [net.constant(np.array([3])), net.constant(np.float32([0.5])), net.constant(np.float32([0.1]))]
    out = net.op("NonMaxSuppression", net.input(1, 3, 4), scores, *limits)
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    assert_as_onnxruntime(net, tmp_path, out, x=boxes)


def test_a_mean_of_many_pixels_keeps_its_digits(tmp_path: Path) -> None:
    """Behind a convolution, where it is computed in blocks of channels: a sum of all pixels in a row loses three."""
    net = Net()
    out = net.op("GlobalAveragePool", net.conv(net.input(1, 3, 256, 256), (3, 16), 1))
    x = image(1, 3, 256, 256, mean=100.0)
    graph = net.graph(tmp_path, out)
    weight, bias = (numpy_helper.to_array(w).astype(np.float64) for w in net.weights)
    wanted = np.einsum("oc,c->o", weight[:, :, 0, 0], x.astype(np.float64).mean((0, 2, 3))) + bias
    found = run(graph, host_target(), {"x": x})[out].reshape(-1)
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()


BOUNDED = ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Sigmoid", "Softplus", "Sign",
           "ThresholdedRelu", "Tanh", "Max", "Min", "Clip")  # fmt: skip


@pytest.mark.parametrize("behind_convolution", [False, True])
@pytest.mark.parametrize("kind", BOUNDED)
def test_no_numbers_and_infinities_go_through(tmp_path: Path, kind: str, behind_convolution: bool) -> None:
    net = Net(opset=18)
    x = image(1, 4, 9, 9)
    x[0, 1, 4, 4], x[0, 2, 0, 0], x[0, 3, 8, 8] = np.nan, np.inf, -np.inf
    value = net.input(1, 4, 9, 9)
    if behind_convolution:
        value = net.op("Conv", value, net.weight(8, 4, 3, 3), group=1)
    further = {
        "Max": lambda: [net.weight(1, 4, 1, 1) if not behind_convolution else net.weight(1, 8, 1, 1)],
        "Min": lambda: [net.scalar(0.5)],
        "Clip": lambda: [net.scalar(-0.5), net.scalar(0.5)],
    }
    reads = [value, *further.get(kind, list)()]
    assert_as_onnxruntime(net, tmp_path, net.op(kind, *reads), x=x)
