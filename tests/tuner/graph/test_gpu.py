"""Lowering for OpenCL and CUDA: right results on the drivers that are here, and a kernel for everything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax, te, tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule

from templates import default
from templates.gpu.limits import gpu_limits
from templates.gpu.opaque import host_accesses
from tests.templates.gpu.support import device_number, gpu
from tests.tuner.graph.networks import Net, assert_close, assert_computes, expected, lowered, random_inputs, run
from tests.tuner.graph.test_lower import ELEMENTWISE
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, compile_module, culprit, fuse, host_of, load_onnx
from tuner.graph.lowering.passes import finish
from tuner.placement.fallback import CPU, fall_back


@pytest.fixture(scope="module", params=["pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def pocl() -> Device:
    return open_device(f"opencl:{device_number('pocl')}")


def assert_on(device: Device, net: Net, folder: Path, *outputs: str) -> FusedGraph:
    return assert_computes(net, folder, device.target, outputs, device=device.tvm_device())


def residual_network(channels: int) -> tuple[Net, str]:
    net = Net()
    x = net.conv(net.input(1, 3, 15, 22), (3, channels), 7, False, strides=[2, 2], pads=[3, 3, 3, 3])
    x = net.op("MaxPool", net.op("Relu", net.batch_norm(x, channels)), kernel_shape=[3, 3], strides=[2, 2])
    y = net.op("Relu", net.conv(x, (channels, channels), pads=[1, 1, 1, 1]))
    x = net.op("Relu", net.op("Add", net.conv(y, (channels, channels), pads=[1, 1, 1, 1]), x))
    x = net.op("Flatten", net.op("GlobalAveragePool", net.conv(x, (1, channels), group=channels)))
    return net, net.op("Gemm", x, net.weight(10, channels), net.weight(10), transB=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [16, 5])
def test_a_residual_network(tmp_path: Path, device: Device, channels: int) -> None:
    net, output = residual_network(channels)
    graph = assert_on(device, net, tmp_path, output)
    assert len(graph.anchors) == 5


def test_anchors_without_a_template(tmp_path: Path, device: Device) -> None:
    net, output = residual_network(8)
    graph = net.graph(tmp_path, output)
    inputs = random_inputs(graph)
    results = run(graph, device.target, inputs, {s.workload: None for s in graph.anchors}, device.tvm_device())
    assert_close(results, expected(net.model(output), inputs))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_operators(tmp_path: Path, pocl: Device, name: str) -> None:
    net = Net()
    data = net.input(1, 4, 8, 9)
    out = ELEMENTWISE[name](net, net.conv(data, (4, 20), 1), net.conv(data, (4, 20), 1))
    assert_on(pocl, net, tmp_path, net.op("Relu", net.conv(out, (20, 6), 1)), out)


@pytest.mark.parametrize("channels", [16, 5])
def test_pooling_and_reductions(tmp_path: Path, pocl: Device, channels: int) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 10, 13), (4, channels), 1)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    outputs = [
        net.op("MaxPool", x, **window),
        net.op("AveragePool", x, **window),
        net.op("AveragePool", x, **window, count_include_pad=1, ceil_mode=1),
        net.op("GlobalMaxPool", x),
        net.op("ReduceMean", x, axes=[2, 3], keepdims=0),
        net.op("ReduceMax", x, axes=[1], keepdims=1),
    ]
    assert_on(pocl, net, tmp_path, *outputs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", [(16, 32, 5), (5, 16), (32, 16, 16, 48)])
def test_concatenation(tmp_path: Path, device: Device, parts: tuple[int, ...]) -> None:
    net = Net()
    x = net.input(2, 3, 6, 7)
    first = net.conv(x, (3, parts[0]), 1)
    joined = net.op("Concat", net.op("Tanh", first), *(net.conv(x, (3, p), 1) for p in parts[1:]), axis=1)
    assert_on(device, net, tmp_path, net.op("Relu", net.conv(joined, (sum(parts), 18), 1)), joined)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_sums(tmp_path: Path, device: Device, axis: int, exclusive: int) -> None:
    """Along the last axis TVM's kernel is right only where a warp's threads run in lockstep."""
    net = Net()
    out = net.op("CumSum", net.input(70, 700), net.constant(np.array(axis)), exclusive=exclusive)
    assert_on(device, net, tmp_path, net.op("Abs", out))


def test_sorting(tmp_path: Path, device: Device) -> None:
    net = Net()
    assert_on(device, net, tmp_path, net.op("TopK", net.input(3, 2000), net.constant(np.array([10])), outputs=2))


def finished(graph: FusedGraph, target_of: Device) -> list[tirx.PrimFunc]:
    module = lowered(graph, target_of.target).module
    return [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]


def test_everything_runs_in_kernels(tmp_path: Path, pocl: Device) -> None:
    net = Net()
    x = net.op("Softmax", net.conv(net.input(1, 4, 8, 8), (4, 24)), axis=1)
    x = net.op("LogSoftmax", net.op("Flatten", net.op("Transpose", x, perm=[0, 2, 3, 1])))
    functions = finished(net.graph(tmp_path, net.op("TopK", x, net.constant(np.array([3])), outputs=2)), pocl)
    assert len(functions) >= 4
    for function in functions:
        assert "tirx.is_scheduled" in function.attrs
        assert not host_accesses(function.body)


def test_a_function_that_would_run_on_the_host_is_refused(pocl: Device) -> None:
    data = te.placeholder((4, 64), name="data")
    func = te.create_prim_func([data, te.compute((4, 64), lambda i, j: data[i, j] + 1.0, name="out")])
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            looped = default.schedule(func, open_device("cpu", 1).target).without_attr("global_symbol")
            name = builder.add_func(looped, "for_the_host")
            out = builder.emit_output(relax.call_tir(name, [x], out_ty=relax.TensorType((4, 64), "float32")))
        builder.emit_func_output(out)
    with pytest.raises(BadInput, match=r"for_the_host.*without a kernel") as caught:
        finish(builder.get(), pocl.target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mali", "intel", "orin"])
def test_a_network_compiles_for_a_device_that_is_not_here(tmp_path: Path, name: str) -> None:
    target = gpu(name)
    net, output = residual_network(16)
    module = lowered(net.graph(tmp_path, output), target).module
    (host,) = compile_module(module, host_of([target]), 1).mod.imports
    (kernels,) = host.imports
    assert kernels.kind == target.kind.name
    keyword = "__global__ void" if name == "orin" else "__kernel void"
    functions = sum(isinstance(f, tirx.PrimFunc) for f in module.functions.values())
    assert kernels.inspect_source().count(keyword) >= functions


def test_the_check_knows_a_loop_of_the_host_from_a_kernel(pocl: Device) -> None:
    data = te.placeholder((4, 64), name="data")
    func = te.create_prim_func([data, te.compute((4, 64), lambda i, j: data[i, j] * 2.0, name="out")])
    scheduled = map(partial(default.schedule, func), (open_device("cpu", 1).target, pocl.target))
    assert [bool(host_accesses(f.body)) for f in scheduled] == [True, False]


def test_many_fused_operators(tmp_path: Path, pocl: Device) -> None:
    """TVM names a function after all of them; PoCL names a file after it."""
    net = Net()
    x = net.input(2, 3, 4)
    for _ in range(20):
        x = net.op("Sigmoid", net.op("Mul", net.op("Add", x, net.weight(3, 1)), net.weight(4)))
    assert_on(pocl, net, tmp_path, x)


def test_rows_of_a_single_result(pocl: Device, tmp_path: Path) -> None:
    """A convolution along one axis, of one tap: each row is one number, and loops count in 64 bits."""
    net = Net()
    taps = net.constant(np.random.default_rng(0).random((64, 64, 1), "float32"))
    out = net.op("Relu", net.op("Conv", net.input(1, 64, 49), taps, kernel_shape=[1]))
    assert_on(pocl, net, tmp_path, out)


def test_a_function_that_tvm_cannot_compile_is_named(pocl: Device) -> None:
    """LLVM's intrinsics do not exist in OpenCL."""
    data = te.placeholder((64,), name="data")
    out = te.compute((64,), lambda i: tirx.call_llvm_pure_intrin("float32", "llvm.exp", data[i]), name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    schedule.bind(schedule.get_loops(schedule.get_sblock("out"))[0], "threadIdx.x")
    func = schedule.mod["main"].with_attr("target", pocl.target)
    with pytest.raises(Exception, match="llvm") as raised:
        tirx.build(IRModule({"bad_kernel": func.with_attr("global_symbol", "bad_kernel")}), target=pocl.target)
    line = culprit(IRModule({"bad_kernel": func}), raised.value)
    assert line.startswith("the function bad_kernel cannot be compiled for opencl: ")
    assert "\n" not in line
    other = culprit(IRModule({"bad_kernel": func}), ValueError("something else"))
    assert other == "the network cannot be compiled: something else"


def test_a_device_without_halves_refuses_a_file_with_them_and_leaves_the_casts_to_the_cpu(
    pocl: Device, tmp_path: Path
) -> None:
    """A driver would refuse the kernels with a page of its own errors."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [1, 8])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [1, 8])
    model = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "half", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    (tmp_path / "half.onnx").write_bytes(model.SerializeToString())
    graph = fuse(load_onnx(tmp_path / "half.onnx"))
    lacking = pocl.target
    if gpu_limits(lacking).stores("float16"):
        pytest.skip("this driver has halves")
    with pytest.raises(BadInput, match="float16, which the device cannot store; name the CPU"):
        lowered(graph, lacking)
    assert CPU in fall_back(graph, lacking)
