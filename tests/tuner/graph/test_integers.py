"""Products of 8-bit integers become anchors that multiply integers, with the numbers that onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.cpu.integer_cpus import ARM, TARGETS, X86
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, random_inputs, run
from tuner.graph import AnchorStep, fuse, load_onnx, multiplies_integers, precisions

needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


def _whole(net: Net, *shape: int, dtype: type, low: int | None = None, high: int | None = None) -> str:
    limits = np.iinfo(dtype)
    low, high = limits.min if low is None else low, limits.max if high is None else high
    return net.constant(net.rng.integers(low, high, shape, dtype, endpoint=True))


def _convolution(net: Net, weight: str, zero: str, shape: tuple[int, ...] = (1, 24, 9, 7), **attributes: object) -> str:
    """What a dynamic quantiser makes of a convolution with a bias and SiLU."""
    x, channels = net.input(*shape), 20
    data = net.op("DynamicQuantizeLinear", x, outputs=3)
    sums = net.op("ConvInteger", data, weight, f"{data}_2", zero, **attributes)
    factor = net.op("Mul", f"{data}_1", net.scalar(0.013))
    bias = net.constant((net.rng.standard_normal(channels) * 10).astype(np.float32))
    steps = net.op("Cast", net.op("Floor", net.op("Div", bias, factor)), to=TensorProto.INT32)
    whole = net.op("Add", sums, net.op("Reshape", steps, net.constant(np.array([1, channels, 1, 1]))))
    real = net.op("Mul", net.op("Cast", whole, to=TensorProto.FLOAT), factor)
    return net.op("Mul", real, net.op("Sigmoid", real))


def _assert_as_onnxruntime(net: Net, folder, *outputs: str, integers: bool = True) -> list[AnchorStep]:
    path = net.save_untyped(folder / "net.onnx", *outputs)
    graph = fuse(load_onnx(path), integers=integers)
    inputs = random_inputs(graph)
    wanted = onnxruntime.InferenceSession(str(path)).run(list(outputs), inputs)
    results = run(graph, host_target(), inputs)
    for name, value in zip(outputs, wanted, strict=True):
        assert results[name].dtype == value.dtype
        if np.issubdtype(value.dtype, np.integer):
            np.testing.assert_array_equal(results[name], value)
        else:
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5 * np.abs(value).max())
    return list(graph.anchors)


@needs_dot_products
@pytest.mark.parametrize("zero", [0, 128, 178, 255])
def test_dynamic_convolution(zero: int, tmp_path) -> None:
    """Weights of uint8 fit into int8 once they are lessened by a number; the window's sums make good for it."""
    net = Net(seed=zero)
    out = _convolution(
        net, _whole(net, 20, 24, 3, 3, dtype=np.uint8), net.constant(np.array(zero, np.uint8)), pads=[1] * 4
    )
    (integer, *_) = [a for a in _assert_as_onnxruntime(net, tmp_path, out) if a.workload.dtype == INTEGERS]
    more = ["window"] if zero != 128 else []
    assert list(integer.workload.epilogue) == ["border", "offset", *more, "real", "scale", "silu"]


@needs_dot_products
def test_dynamic_convolution_with_signed_weights(tmp_path) -> None:
    net = Net(seed=3)
    weight = _whole(net, 20, 24, 3, 3, dtype=np.int8)
    out = _convolution(net, weight, net.constant(np.array(0, np.int8)), strides=[2, 2], pads=[0, 1, 1, 0])
    (integer,) = _assert_as_onnxruntime(net, tmp_path, out)
    assert list(integer.workload.epilogue) == ["border", "offset", "real", "scale", "silu"]


@needs_dot_products
def test_dynamic_convolution_of_a_first_layer(tmp_path) -> None:
    net = Net(seed=4)
    weight = _whole(net, 20, 3, 5, 5, dtype=np.int8)
    out = _convolution(net, weight, net.constant(np.array(0, np.int8)), (2, 3, 12, 11), pads=[2] * 4)
    assert [a.workload.dtype for a in _assert_as_onnxruntime(net, tmp_path, out)] == [INTEGERS]


def test_without_dot_products_products_are_computed_in_float32(tmp_path) -> None:
    net = Net(seed=5)
    weight = _whole(net, 20, 24, 3, 3, dtype=np.uint8)
    out = _convolution(net, weight, net.constant(np.array(121, np.uint8)), pads=[1] * 4)
    assert {a.workload.dtype for a in _assert_as_onnxruntime(net, tmp_path, out, integers=False)} == {"float32"}


@pytest.mark.parametrize("integers", [False, pytest.param(True, marks=needs_dot_products)])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_sums_beyond_what_float32_holds_are_exact(integers: bool, kind: type, tmp_path) -> None:
    """1,500 products of up to 255 * 128 are summed to up to 49 million."""
    net = Net(seed=6)
    x = net.input(4, 1500)
    data = net.op("DynamicQuantizeLinear", x, outputs=3)
    weight = _whole(net, 1500, 40, dtype=kind, low=np.iinfo(kind).max - 3)
    out = net.op("MatMulInteger", data, weight, f"{data}_2", net.constant(np.array(0 if kind == np.int8 else 2, kind)))
    anchors = _assert_as_onnxruntime(net, tmp_path, out, integers=integers)
    assert {a.workload.dtype for a in anchors} == ({INTEGERS} if integers else {"float32"})
    assert integers or len(anchors) > 1  # parts, each of which has an exact sum


@needs_dot_products
def test_signed_data_and_a_zero_point_in_a_quantised_convolution(tmp_path) -> None:
    net = Net(seed=7)
    x = net.input(1, 16, 8, 8)
    scale, point = net.scalar(0.02), net.constant(np.array(-5, np.int8))
    data = net.op("QuantizeLinear", x, scale, point)
    weight, steps = _whole(net, 32, 16, 3, 3, dtype=np.int8), net.constant(np.full(32, 0.003, np.float32))
    reads = [data, scale, point, weight, steps, net.constant(np.zeros(32, np.int8)), net.scalar(0.1), point]
    out = net.op("QLinearConv", *reads, pads=[1] * 4)
    path = net.save_untyped(tmp_path / "net.onnx", out)
    graph = fuse(load_onnx(path), integers=True)
    assert [a.workload.dtype for a in graph.anchors] == [INTEGERS]
    inputs = random_inputs(graph)
    (wanted,) = onnxruntime.InferenceSession(str(path)).run([out], inputs)
    off = np.abs(run(graph, host_target(), inputs)[out].astype(int) - wanted)
    assert off.max() <= 1
    assert np.count_nonzero(off) <= off.size / 1000


@needs_dot_products
@pytest.mark.parametrize("behind", ["Relu", "Add", "Round"])
def test_sums_are_real_numbers_for_what_asks_for_them(behind: str, tmp_path) -> None:
    """An activation, a sum with another tensor, or something else stands right behind the conversion."""
    net = Net(seed=10)
    data = net.op("DynamicQuantizeLinear", net.input(1, 24, 9, 7), outputs=3)
    weight = _whole(net, 20, 24, 3, 3, dtype=np.int8)
    sums = net.op("ConvInteger", data, weight, f"{data}_2", pads=[1] * 4)
    real = net.op("Cast", sums, to=TensorProto.FLOAT)
    out = net.op(behind, real, *([net.weight(1, 20, 9, 7)] if behind == "Add" else []))
    (integer,) = _assert_as_onnxruntime(net, tmp_path, out)
    more = {"Relu": ["relu"], "Add": ["add"], "Round": []}[behind]
    assert list(integer.workload.epilogue) == ["border", "offset", "real", *more]


@needs_dot_products
@pytest.mark.parametrize(("shape", "groups"), [((1, 24, 9, 7), 4), ((1, 20, 9, 7), 5), ((1, 20, 8, 8), 10)])
def test_convolutions_in_groups(shape: tuple[int, ...], groups: int, tmp_path) -> None:
    """Groups of six channels, of four and of two, signed weights and a zero point that is computed."""
    net = Net(seed=8)
    weight = _whole(net, 20, shape[1] // groups, 3, 3, dtype=np.int8)
    out = _convolution(net, weight, net.constant(np.array(0, np.int8)), shape, pads=[1] * 4, group=groups)
    (integer,) = _assert_as_onnxruntime(net, tmp_path, out)
    assert integer.workload.dtype == INTEGERS
    assert list(integer.workload.epilogue) == ["border", "offset", "real", "scale", "silu"]


@needs_dot_products
@pytest.mark.parametrize(("channels", "kind"), [(8, np.int8), (24, np.uint8)])
def test_convolutions_in_groups_that_stay_in_float32(channels: int, kind: type, tmp_path) -> None:
    """Fewer channels than a vector has, and weights that do not fit into int8."""
    net = Net(seed=8)
    weight, zero = _whole(net, 20, channels // 4, 3, 3, dtype=kind), net.constant(np.array(0, kind))
    out = _convolution(net, weight, zero, (1, channels, 9, 7), pads=[1] * 4, group=4)
    assert [a.workload.dtype for a in _assert_as_onnxruntime(net, tmp_path, out)] == ["float32"]


def test_a_quantised_network_says_what_multiplies_integers(tmp_path) -> None:
    net = Net(seed=9)
    weight, zero = _whole(net, 20, 24, 3, 3, dtype=np.int8), net.constant(np.array(0, np.int8))
    x = _convolution(net, weight, zero, pads=[1] * 4)
    out = net.conv(x, (5, 20), 3, group=4)
    path = net.save_untyped(tmp_path / "net.onnx", out)
    model = load_onnx(path)
    assert precisions(fuse(model)) == "quantised: its 2 convolutions and dense layers are computed in float32"
    assert precisions(fuse(model, integers=True)) == (
        "quantised: 1 of 2 convolutions and dense layers multiply integers of 8 bits; float32 computes the rest (1)"
    )


@pytest.mark.parametrize("cpu", [*X86, *ARM])
def test_integers_are_for_cpus_that_gain(cpu: str) -> None:
    """On NEON without dot products they are slower than Winograd's algorithm in float32."""
    assert multiplies_integers([TARGETS[cpu]]) == (cpu != "smull")


@needs_dot_products
def test_integers_are_for_one_cpu_that_multiplies_them() -> None:
    target = host_target()
    assert multiplies_integers([target])
    assert not multiplies_integers([target, target])
    assert not multiplies_integers([])
