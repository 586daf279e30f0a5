"""Networks stored in half precision: what is stored, what is computed in float32, and where the borders are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tvm.target import Target

from templates.template import default_config
from tests.templates.gpu.support import device_number, gpu
from tests.tuner.graph.networks import Net, assert_close, expected, lowered, random_inputs, run
from tests.tuner.graph.test_attention import operands as attention_operands
from tests.tuner.graph.test_attention import weighted
from tests.tuner.graph.test_gpu import residual_network
from tests.tuner.graph.test_lower import ELEMENTWISE
from tuner.devices import Device, open_device
from tuner.devices.cpu import cpu_elsewhere
from tuner.errors import BadInput
from tuner.graph import FusedGraph, compile_module, halved, host_of, tasks_of
from tuner.graph.ir.bindings import Bindings, dtype_of, operands
from tuner.graph.ir.simplify import constant

# A few roundings of 2^-11 one after the other, relative to the largest value.
TOLERANCE = 4e-3


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(f"opencl:{device_number('intel')}")


def assert_near(
    device: Device,
    net: Net,
    folder: Path,
    *outputs: str,
    tolerance: float = TOLERANCE,
    targets: Sequence[Target] = (),
) -> FusedGraph:
    """The network in half precision, for devices with `targets`, gives nearly what onnx gives; returns it."""
    graph = halved(net.graph(folder, *outputs), targets)
    inputs = random_inputs(graph)
    results = run(graph, device.target, inputs, device=device.tvm_device())
    assert {value.dtype for value in results.values()} == {np.dtype(np.float32)}
    assert_close(results, expected(net.model(*outputs), inputs), tolerance)
    return graph


@pytest.mark.parametrize("channels", [16, 5])
def test_a_residual_network(tmp_path: Path, device: Device, channels: int) -> None:
    net, output = residual_network(channels)
    graph = assert_near(device, net, tmp_path, output)
    assert {task.workload.dtype for task in tasks_of(graph)} == {"float16"}


def test_everything_between_the_borders_is_stored_in_halves(tmp_path: Path, device: Device) -> None:
    net, output = residual_network(16)
    graph = halved(net.graph(tmp_path, output))
    main = Bindings.of(lowered(graph, device.target).module["main"])
    assert [dtype_of(var) for var in main.variables] == ["float16"] * (len(main.variables) - 1) + ["float32"]
    constants = [leaf for call in main.values for leaf in operands(call) if constant(leaf) is not None]
    assert len(constants) == 2 * len(graph.anchors)
    assert {dtype_of(leaf) for leaf in constants} == {"float16"}


def test_the_network_that_it_is_made_of_stays_as_it_is(tmp_path: Path) -> None:
    net, output = residual_network(16)
    graph = net.graph(tmp_path, output)
    before = [(type(step), dtype_of(step.out)) for step in graph.steps]
    halved(graph)
    assert [(type(step), dtype_of(step.out)) for step in graph.steps] == before
    assert (graph.dtype, {s.weight.dtype for s in graph.anchors}) == ("float32", {np.dtype(np.float32)})


def test_anchors_without_a_template(tmp_path: Path, device: Device) -> None:
    net, output = residual_network(8)
    graph = halved(net.graph(tmp_path, output))
    inputs = random_inputs(graph)
    choices = {step.workload: None for step in graph.anchors}
    results = run(graph, device.target, inputs, choices, device.tvm_device())
    assert_close(results, expected(net.model(output), inputs), TOLERANCE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_operators(tmp_path: Path, device: Device, name: str) -> None:
    net = Net()
    data = net.input(1, 4, 8, 9)
    out = ELEMENTWISE[name](net, net.conv(data, (4, 20), 1), net.conv(data, (4, 20), 1))
    assert_near(device, net, tmp_path, net.op("Relu", net.conv(out, (20, 6), 1)), out, tolerance=2e-2)


@pytest.mark.parametrize("channels", [16, 5])
def test_pooling_and_reductions(tmp_path: Path, device: Device, channels: int) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 10, 13), (4, channels), 1)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    pooled = [
        net.op("MaxPool", x, **window),
        net.op("AveragePool", x, **window),
        net.op("GlobalMaxPool", x),
        net.op("ReduceMean", x, axes=[2, 3], keepdims=0),
        net.op("Softmax", x, axis=1),
    ]
    assert_near(device, net, tmp_path, *pooled, *(net.op("Relu", p) for p in pooled))


@pytest.mark.parametrize("parts", [(16, 32, 5), (5, 16)])
def test_concatenation(tmp_path: Path, device: Device, parts: tuple[int, ...]) -> None:
    net = Net()
    x = net.input(2, 3, 6, 7)
    constant = net.weight(2, 16, 6, 7)
    first = net.conv(x, (3, parts[0]), 1)
    joined = net.op("Concat", net.op("Tanh", first), *(net.conv(x, (3, p), 1) for p in parts[1:]), constant, axis=1)
    assert_near(device, net, tmp_path, net.op("Relu", net.conv(joined, (sum(parts) + 16, 18), 1)), joined)


@pytest.mark.parametrize("kernel", ["GlobalAveragePool", "ReduceMean"])
@pytest.mark.parametrize("blocked", [True, False])
def test_means_are_summed_in_float32(tmp_path: Path, device: Device, kernel: str, blocked: bool) -> None:
    """4096 equal values: in half precision their sum would stop growing, or overflow."""
    net = Net()
    x = net.input(1, 16, 64, 64)
    x = net.op("Conv", x, net.constant(np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1))) if blocked else x
    out = net.op(kernel, net.op("Relu", x), **({} if kernel == "GlobalAveragePool" else {"axes": [2, 3]}))
    graph = halved(net.graph(tmp_path, net.op("Relu", out)))
    inputs = {"x": np.full((1, 16, 64, 64), 33.0, np.float32)}
    (result,) = run(graph, device.target, inputs, device=device.tvm_device()).values()
    np.testing.assert_array_equal(result, np.full((1, 16, 1, 1), 33.0, np.float32))


def test_what_only_the_caller_reads_is_not_rounded(tmp_path: Path, device: Device) -> None:
    net = Net()
    out = net.op("Softmax", net.input(2, 100))
    graph = assert_near(device, net, tmp_path, out, tolerance=2e-3)
    assert [dtype_of(step.out) for step in graph.steps] == ["float16", "float32"]


def test_integers_stay_integers(tmp_path: Path, device: Device) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 6, 6), (4, 8), 1)
    values = net.op("TopK", net.op("Flatten", x), net.constant(np.array([5])), outputs=2)
    assert_near(device, net, tmp_path, net.op("Abs", values))


def test_products_of_two_matrices_are_in_halves_where_all_devices_compute_in_them(tmp_path: Path) -> None:
    net = Net()
    x = net.input(2, 40, 48)
    product = net.op("MatMul", net.op("Relu", x), net.op("Sigmoid", net.op("Transpose", x, perm=[0, 2, 1])))
    graph = net.graph(tmp_path, net.op("Relu", product))
    arm, old = cpu_elsewhere("rpi5").target, cpu_elsewhere("rpi4").target
    some = [arm], [arm, arm], [gpu("orin"), gpu("mali")], [arm, old], []
    for targets, dtype in zip(some, ("float16", "float16", "float16", "float32", "float32"), strict=True):
        (task,) = tasks_of(halved(graph, targets))
        assert (task.workload.op, task.workload.dtype) == ("batch_matmul", dtype)


def test_attention_is_in_halves_where_all_devices_store_them(tmp_path: Path, device: Device) -> None:
    net = Net()
    query, key, value = attention_operands(net, 2)
    scores = net.op("MatMul", net.op("Mul", query, net.constant(np.float32(0.25))), key)
    output = net.op("Relu", weighted(net, scores, value, 2))
    arm, other = cpu_elsewhere("rpi5").target, device.target
    for targets, dtype in (([other, gpu("orin")], "float16"), ([other, arm], "float32"), ([], "float32")):
        (task,) = tasks_of(halved(net.graph(tmp_path, output), targets))
        assert (task.workload.op, task.workload.dtype) == ("attention", dtype)
    assert_near(device, net, tmp_path, output, targets=[device.target])


def test_a_weight_beyond_the_largest_half(tmp_path: Path) -> None:
    net = Net()
    weight = np.ones((8, 4, 1, 1), np.float32)
    weight[3, 2] = 7e4
    graph = net.graph(tmp_path, net.op("Relu", net.op("Conv", net.input(1, 4, 5, 5), net.constant(weight))))
    with pytest.raises(BadInput, match=r"node '/conv_0/Conv': a weight of 7e\+04 is too large for half precision"):
        halved(graph)


@pytest.mark.parametrize("name", ["mali", "intel", "orin"])
def test_a_network_compiles_for_a_device_that_is_not_here(tmp_path: Path, name: str) -> None:
    target = gpu(name)
    net, output = residual_network(16)
    module = lowered(halved(net.graph(tmp_path, output)), target).module
    (host,) = compile_module(module, host_of([target]), 1).mod.imports
    assert "half" in host.imports[0].inspect_source()


def test_every_anchor_has_a_template(tmp_path: Path) -> None:
    net, output = residual_network(16)
    graph = halved(net.graph(tmp_path, output))
    for name in ("mali", "intel", "orin"):
        for step in graph.anchors:
            assert default_config(step.workload, gpu(name)) is not None, step.node
