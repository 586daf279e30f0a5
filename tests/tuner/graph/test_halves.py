"""Files in half and double precision: weights, inputs and outputs keep their types, and values are onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_as_onnxruntime, run
from tuner.graph import fuse, load_onnx


def half_network(net: Net, x: str, kind: type) -> str:
    """A convolution, a branch that is computed in single precision, and a pool."""
    weight = net.constant((net.rng.standard_normal((8, 3, 3, 3)) / 5).astype(kind))
    y = net.op("Conv", x, weight, net.constant(np.ones(8, kind)), kernel_shape=[3, 3])
    single = net.op("Softplus", net.op("Cast", y, to=TensorProto.FLOAT))
    back = net.op("Cast", single, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    return net.op("GlobalAveragePool", net.op("Add", y, back))


def test_a_network_in_half_precision(tmp_path: Path) -> None:
    net = Net()
    out = half_network(net, net.input(1, 3, 9, 9, dtype=TensorProto.FLOAT16), np.float16)
    x = net.rng.standard_normal((1, 3, 9, 9)).astype(np.float16)
    assert_as_onnxruntime(net, tmp_path, out, tolerance=4e-3, x=x)


def test_a_network_in_half_precision_with_inputs_in_single(tmp_path: Path) -> None:
    net = Net()
    narrow = net.op("Cast", net.input(1, 3, 9, 9), to=TensorProto.FLOAT16)
    out = net.op("Cast", half_network(net, narrow, np.float16), to=TensorProto.FLOAT)
    assert_as_onnxruntime(
        net, tmp_path, out, tolerance=4e-3, x=net.rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
    )


def test_a_network_in_bfloat16(tmp_path: Path) -> None:
    """onnxruntime has no kernels for it on a CPU: it is compared with the same values in single precision."""
    net = Net()
    out = half_network(net, net.input(1, 3, 9, 9, dtype=TensorProto.BFLOAT16), ml_dtypes.bfloat16)
    x = net.rng.standard_normal((1, 3, 9, 9)).astype(ml_dtypes.bfloat16)
    graph = fuse(load_onnx(net.save_untyped(tmp_path / "net.onnx", out)))
    assert [(t.dtype, t.shape) for t in (*graph.model.inputs, *graph.model.outputs)] == [
        ("bfloat16", (1, 3, 9, 9)), ("bfloat16", (1, 8, 1, 1)),
    ]  # fmt: skip
    found = run(graph, host_target(), {"x": x})[out]
    wide = Net()
    wide_out = half_network(wide, wide.input(1, 3, 9, 9), np.float32)
    for tensor in wide.weights:
        rounded = onnx.numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
    path = wide.save_untyped(tmp_path / "wide.onnx", wide_out)
    wanted = run(fuse(load_onnx(path)), host_target(), {"x": x.astype(np.float32)})[wide_out]
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2**-7)


def test_halves_within_a_branch(tmp_path: Path) -> None:
    """A branch of a constant condition reads a half of the graph around it."""
    net = Net()
    x = net.input(2, 3, dtype=TensorProto.FLOAT16)
    ends = [helper.make_tensor_value_info("end", TensorProto.FLOAT16, None)]
    two = helper.make_node("Constant", [], ["two"], value=helper.make_tensor("", TensorProto.FLOAT16, [], [2.0]))
    double = helper.make_graph([two, helper.make_node("Mul", [x, "two"], ["end"])], "double", [], ends)
    same = helper.make_graph([helper.make_node("Identity", [x], ["end"])], "same", [], ends)
    out = net.op("If", net.constant(np.array(True)), then_branch=double, else_branch=same)
    assert_as_onnxruntime(net, tmp_path, out, x=np.arange(6, dtype=np.float16).reshape(2, 3))


def test_an_input_that_is_an_output(tmp_path: Path) -> None:
    net = Net()
    x = net.input(2, 3, dtype=TensorProto.FLOAT16)
    out = net.op("Relu", x)
    same = net.op("Identity", x)
    assert_as_onnxruntime(net, tmp_path, out, same, x=np.arange(6, dtype=np.float16).reshape(2, 3) - 2)


@pytest.mark.parametrize("kind", ["MatMul", "Add", "Sub"])
def test_doubles(tmp_path: Path, kind: str) -> None:
    net = Net()
    weight = net.constant(net.rng.standard_normal((3, 3)))
    out = net.op("Softmax", net.op(kind, net.input(3, 3, dtype=TensorProto.DOUBLE), weight))
    assert_as_onnxruntime(net, tmp_path, out, tolerance=1e-14, x=net.rng.standard_normal((3, 3)))


def test_constants_of_doubles_stay_doubles(tmp_path: Path) -> None:
    """Also those that are made on the way: of a normalisation and of slopes."""
    net, shape = Net(), (2, 3, 4, 4)
    x = net.input(*shape, dtype=TensorProto.DOUBLE)
    parameters = [net.constant(net.rng.random(3) + 0.5) for _ in range(4)]
    slopes = net.constant(net.rng.random((3, 1, 1)))
    out = net.op("PRelu", net.op("BatchNormalization", x, *parameters), slopes)
    assert_as_onnxruntime(net, tmp_path, out, tolerance=1e-14, x=net.rng.standard_normal(shape))


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"])
def test_types_of_inputs(tmp_path: Path, kind: str) -> None:
    net = Net()
    x = net.input(5, dtype=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    outs = [net.op("Cast", x, to=TensorProto.FLOAT), net.op("Identity", x)]
    assert_as_onnxruntime(net, tmp_path, *outs, x=np.array([0, 1, 2, 100, 127]).astype(kind))
