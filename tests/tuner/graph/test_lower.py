"""Lowering: whatever the network, the module computes what onnx computes, and stays blocked where it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import tirx
from tvm.target import Target

from templates.cpu.isa import vector_unit
from templates.template import default_config
from tests.tuner.graph.networks import Net, assert_computes, calls, conversions, expected, lowered, random_inputs, run
from tuner.devices import open_device
from tuner.graph import compile_module


@pytest.fixture(scope="module")
def target() -> Target:
    return open_device("cpu", 1).target


@pytest.mark.sampled(4)
@pytest.mark.parametrize("channels", [16, 24, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_residual_network(tmp_path: Path, target: Target, channels: int, batch: int) -> None:
    net = Net()
    x = net.input(batch, 3, 15, 22)
    x = net.op(
        "Relu", net.batch_norm(net.conv(x, (3, channels), 7, False, strides=[2, 2], pads=[3, 3, 3, 3]), channels)
    )
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net.op("Relu", net.conv(x, (channels, channels), pads=[1, 1, 1, 1]))
    y = net.op("Add", net.conv(y, (channels, channels), pads=[1, 1, 1, 1]), x)
    x = net.op("Relu", y)
    y = net.conv(net.conv(x, (channels, 40), pads=[1, 1, 1, 1], strides=[2, 1]), (40, 40), 1)
    x = net.op("Relu", net.op("Sum", net.conv(x, (channels, 40), 1, strides=[2, 1]), y))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    graph = assert_computes(net, tmp_path, target, [net.op("Gemm", x, net.weight(10, 40), net.weight(10), transB=1)])
    assert len(graph.anchors) == 7


def test_only_the_ends_are_converted(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 12, 12), (3, 32), strides=[2, 2]))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[1, 1])
    a, b = net.conv(x, (32, 16), 1), net.op("Relu", net.conv(x, (32, 48), pads=[1, 1, 1, 1]))
    x = net.op("Sigmoid", net.op("Concat", a, b, axis=1))
    x = net.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = net.op("Mul", x, net.op("Tanh", x))
    graph = net.graph(tmp_path, net.op("Flatten", net.op("GlobalAveragePool", x)))
    assert conversions(graph, target) == 0


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64"])
def test_other_vector_units(tmp_path: Path, mcpu: str) -> None:
    """Blocks of 8 and 4 channels: the machine that runs the tests can run narrower code, too."""
    target = Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    if "x86" not in str(open_device("cpu", 1).key.family):
        pytest.skip("code for x86-64 runs only there")
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 9, 11), (3, 12), pads=[0, 1, 2, 1]))
    x = net.op("Concat", x, net.conv(x, (12, 8), 1), axis=1)
    x = net.op("MaxPool", net.conv(x, (1, 20), group=20, pads=[1, 1, 1, 1]), kernel_shape=[3, 3], ceil_mode=1)
    assert_computes(net, tmp_path, target, [net.op("GlobalAveragePool", x), x])


def test_a_network_compiles_for_another_architecture(tmp_path: Path) -> None:
    """Blocks of four channels for NEON; nobody runs it here."""
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "num-cores": 4})
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 9, 11), (3, 12)))
    x = net.op("MaxPool", net.op("Concat", x, net.conv(x, (12, 8), 1, pads=[0, 0, 0, 0]), axis=1), kernel_shape=[2, 2])
    graph = net.graph(tmp_path, net.op("Softmax", net.op("Flatten", net.op("GlobalAveragePool", x))))
    executable = compile_module(lowered(graph, target).module, target, 1)
    compiled = tmp_path / "kernels.o"
    executable.mod.imports[0].write_to_file(str(compiled), "o")
    assert int.from_bytes(compiled.read_bytes()[18:20], "little") == 183  # ELF's number of AArch64


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("per_group", "out", "groups"),
    [(1, 32, 32), (1, 20, 20), (1, 40, 20), (4, 32, 8), (16, 32, 2), (3, 10, 2), (8, 24, 4)],
)
def test_grouped_convolutions(tmp_path: Path, target: Target, per_group: int, out: int, groups: int) -> None:
    net = Net()
    channels = per_group * groups
    x = net.op("Relu", net.conv(net.input(1, 3, 9, 10), (3, channels), 1))
    y = net.conv(x, (per_group, out), group=groups, pads=[1, 1, 1, 1], strides=[1, 2])
    assert_computes(net, tmp_path, target, [net.op("Relu", y)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 2, 3], [2, 2, 2, 2]])
@pytest.mark.parametrize("options", [{}, {"dilations": [2, 1]}, {"strides": [3, 2]}])
def test_asymmetric_padding_and_dilation(tmp_path: Path, target: Target, pads: list[int], options: dict) -> None:
    net = Net()
    x = net.conv(net.input(1, 20, 11, 9), (20, 17), kernel=(3, 2), pads=pads, **options)
    assert_computes(net, tmp_path, target, [net.op("Relu", x)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("size", "strides", "pads"),
    [
        ((3, 3), (2, 2), (1, 1, 1, 1)),
        ((2, 3), (2, 1), (0, 1, 0, 0)),
        ((3, 2), (3, 2), (0, 0, 2, 1)),
        ((5, 5), (3, 2), (2, 2, 2, 2)),
    ],
)
@pytest.mark.parametrize("channels", [16, 5])
def test_pooling(
    tmp_path: Path, target: Target, kind: str, ceil_mode: int, size: tuple, strides: tuple, pads: tuple, channels: int
) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 10, 13), (4, channels), 1)
    options = [{}] if kind == "MaxPool" else [{"count_include_pad": 0}, {"count_include_pad": 1}]
    pools = [net.op(kind, x, kernel_shape=size, strides=strides, pads=pads, ceil_mode=ceil_mode, **o) for o in options]
    graph = assert_computes(net, tmp_path, target, pools)
    assert any("pool" in name for name in calls(graph, target))


@pytest.mark.parametrize("channels", [3, 16, 20])
def test_pools_of_plain_images_are_blocked(tmp_path: Path, target: Target, channels: int) -> None:
    """An image that nothing else has in blocked layout, unless it has fewer channels than half a vector."""
    net = Net()
    x = net.input(1, channels, 9, 11)
    pools = [net.op(kind, x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]) for kind in ("MaxPool", "AveragePool")]
    names = calls(assert_computes(net, tmp_path, target, pools), target)
    assert any("average_pool" in name for name in names) == (2 * channels >= vector_unit(target).lanes)


def test_dilated_pooling(tmp_path: Path, target: Target) -> None:
    net = Net(opset=19)
    x = net.conv(net.input(1, 4, 10, 13), (4, 16), 1)
    outputs = [
        net.op("MaxPool", x, kernel_shape=[3, 2], dilations=[2, 3]),
        net.op("MaxPool", x, kernel_shape=[3, 3], dilations=[2, 2], pads=[1, 1, 1, 1]),
        net.op("AveragePool", x, kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 1, 2]),
    ]
    assert_computes(net, tmp_path, target, outputs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", [(16, 32, 5), (16, 16), (5, 16), (32, 16, 16, 48)])
def test_concatenation(tmp_path: Path, target: Target, parts: tuple[int, ...]) -> None:
    net = Net()
    x = net.input(2, 3, 6, 7)
    joined = net.op("Concat", *(net.conv(x, (3, p), 1) for p in parts), axis=1)
    assert_computes(net, tmp_path, target, [net.op("Relu", net.conv(joined, (sum(parts), 18), 1)), joined])


def test_convolutions_write_into_what_joins_them(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.input(2, 16, 6, 7)
    a, b = net.conv(x, (16, 32), 1), net.op("Relu", net.conv(x, (16, 16), pads=[1, 1, 1, 1]))
    joined = net.op("Concat", a, b, net.conv(b, (16, 16), 1), axis=1)
    again = net.op("Concat", net.conv(joined, (64, 16), 1), joined, net.op("Tanh", joined), axis=1)
    graph = assert_computes(net, tmp_path, target, [net.conv(again, (16 + 2 * 64, 16), 1)])
    names = calls(graph, target)
    assert not [name for name in names if "concatenate" in name]
    assert sum("copy" in name for name in names) == 3  # b has another reader, `joined` and its tangent are no anchors


def test_parts_that_cannot_be_written_in_place(tmp_path: Path, target: Target) -> None:
    """One part twice, a part that is a result, channels that do not fill blocks, parts in the wrong order."""
    net = Net()
    x = net.input(1, 4, 6, 7)
    twice, result, odd, even = (net.conv(x, (4, c), 1) for c in (16, 16, 5, 16))
    outputs = [
        net.op("Concat", twice, twice, axis=1),
        net.op("Concat", result, net.conv(x, (4, 16), 1), axis=1),
        result,
        net.op("Concat", odd, even, axis=1),
        net.op("Concat", net.conv(x, (4, 16), 1), net.conv(x, (4, 16), 1), axis=3),
    ]
    assert_computes(net, tmp_path, target, outputs)


def test_concatenation_along_other_axes_and_of_an_input(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.input(1, 16, 6, 7)
    conv = net.conv(x, (16, 16), 1)
    assert_computes(net, tmp_path, target, [net.op("Concat", conv, conv, axis=2), net.op("Concat", x, conv, axis=-3)])


@pytest.mark.parametrize("axis", [2, -1])
def test_rows_and_columns_are_joined_as_they_lie(tmp_path: Path, target: Target, axis: int) -> None:
    """Also of channels that do not fill their blocks."""
    net = Net()
    x = net.input(1, 16, 6, 6)
    joined = net.op("Concat", net.conv(x, (16, 20), 1), net.op("Tanh", net.conv(x, (16, 20), 1)), axis=axis)
    graph = assert_computes(net, tmp_path, target, [net.conv(joined, (20, 16), 1)])
    assert conversions(graph, target) == 2  # data in, and the result out


ELEMENTWISE: dict[str, Callable[[Net, str, str], str]] = {
    "gate": lambda net, x, y: net.op("Mul", x, net.op("Sigmoid", net.op("GlobalAveragePool", y))),
    "spatial gate": lambda net, x, y: net.op("Mul", x, net.op("ReduceMax", y, axes=[1], keepdims=1)),
    "channel constants": lambda net, x, y: net.op("Add", net.op("Mul", net.op("Tanh", x), net.weight(20, 1, 1)), y),
    "scalars": lambda net, x, y: net.op("Sub", net.scalar(2), net.op("Mul", net.op("Abs", x), y)),
    "division": lambda net, x, y: net.op("Div", x, net.op("Exp", y)),
    "power": lambda net, x, y: net.op("Pow", net.op("Abs", net.op("Add", x, y)), net.scalar(1.5)),
    "maximum": lambda net, x, y: net.op("Max", x, y, net.op("Min", x, y)),
    "row constants": lambda net, x, y: net.op("Mul", net.op("Add", x, net.weight(9)), y),
    "prelu": lambda net, x, y: net.op("Add", net.op("PRelu", x, net.weight(20, 1, 1)), y),
    "softmax": lambda net, x, y: net.op("Mul", net.op("Softmax", x, axis=1), y),
    "transposed": lambda net, x, y: net.op("Add", net.op("Transpose", x, perm=[0, 1, 2, 3]), y),
    "full constant": lambda net, x, y: net.op("Mul", net.op("Add", x, net.weight(1, 20, 8, 9)), y),
    "batch norm": lambda net, x, y: net.op("Relu", net.batch_norm(net.op("Mul", x, y), 20)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_operators(tmp_path: Path, target: Target, name: str) -> None:
    net = Net()
    data = net.input(1, 4, 8, 9)
    x, y = net.conv(data, (4, 20), 1), net.conv(data, (4, 20), 1)
    out = ELEMENTWISE[name](net, x, y)
    assert_computes(net, tmp_path, target, [net.op("Relu", net.conv(out, (20, 6), 1)), out])


@pytest.mark.parametrize("second", ["LeakyRelu", "HardSwish", "Elu"])
def test_an_activation_of_an_activation_reads_its_value_twice(tmp_path: Path, target: Target, second: str) -> None:
    net = Net()
    x = net.op("Clip", net.conv(net.input(1, 3, 6, 6), (3, 8)), net.scalar(-1), net.scalar(2))
    graph = assert_computes(net, tmp_path, target, [net.op(second, x)])
    assert len(graph.steps) == 1


def test_lanes_beyond_the_channels_stay_finite(tmp_path: Path, target: Target) -> None:
    """Logarithms of what fills up a block would poison the next convolution."""
    net = Net()
    x = net.op("Log", net.op("Abs", net.conv(net.input(1, 4, 5, 5), (4, 5), 1)))
    assert_computes(net, tmp_path, target, [net.conv(x, (5, 3), 1)])


def test_reductions_with_and_without_kept_axes(tmp_path: Path, target: Target) -> None:
    net = Net()
    outputs = []
    for channels in (16, 5):
        x = net.op("Relu", net.conv(net.input(1, 4, 5, 6) if not net.inputs else "x", (4, channels), 1))
        for kind in ("ReduceMean", "ReduceMax"):
            outputs += [net.op(kind, x, axes=[2, 3], keepdims=k) for k in (0, 1)]
        outputs += [net.op("ReduceMean", x, axes=[1], keepdims=1), net.op("GlobalMaxPool", x)]
    assert_computes(net, tmp_path, target, outputs)


def test_dense_layers_with_rows(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.op("Relu", net.op("Gemm", net.input(5, 12), net.weight(30, 12), net.weight(30), transB=1))
    out = net.op("Add", net.op("MatMul", x, net.weight(30, 30)), x)
    assert_computes(net, tmp_path, target, [out])


def test_results_that_are_inputs_constants_or_used_inside(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.input(1, 4, 5, 6)
    conv = net.conv(x, (4, 20))
    graph = net.graph(tmp_path, x, conv, net.op("Relu", net.conv(conv, (20, 4), 1)), net.op("Identity", net.weight(3)))
    inputs = random_inputs(graph)
    results = run(graph, target, inputs)
    assert len(results) == 4
    for name, value in expected(net.model(*results), inputs).items():
        np.testing.assert_allclose(results[name], value, atol=1e-5)


def test_equal_operators_share_function_and_constants(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.conv(net.input(1, 16, 6, 6), (16, 16), pads=[1, 1, 1, 1])
    for _ in range(3):
        x = net.op("Relu", x)
        node = net.conv(x, (16, 16), pads=[1, 1, 1, 1])
        net.nodes[-1].input[1:] = net.nodes[0].input[1:]
        x = node
    graph = net.graph(tmp_path, net.op("Relu", x))
    whole = lowered(graph, target)
    names = [placed.operator.function for placed in whole.operators]
    assert len(names) == 4
    assert len(set(names)) == 1
    values = [b.value for block in whole.module["main"].body.blocks for b in block.bindings]
    weights = [v.args[1].fields[1] for v in values if hasattr(v, "op") and len(v.args[1].fields) == 3]
    assert len(weights) == 4
    assert all(weight.same_as(weights[0]) for weight in weights)


def test_storage_is_planned(tmp_path: Path, target: Target) -> None:
    """Values that do not live at the same time share it."""
    net = Net()
    x = net.input(1, 8, 12, 12)
    for channels in (16, 24, 16, 8, 16, 8):
        x = net.op("Relu", net.conv(x, (8, channels), 1))
        x = net.op("Relu", net.conv(x, (channels, 8), 1))
    whole = lowered(net.graph(tmp_path, x), target)
    texts = [compile_module(whole.module, target, n).as_text() for n in (1, 2)]
    planned, unplanned = (text.count("call  vm.builtin.alloc_storage") for text in texts)
    assert 0 < planned < unplanned / 2


def test_workloads_without_a_template_are_computed_all_the_same(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.op("HardSwish", net.conv(net.input(1, 8, 7, 6), (2, 12), group=4, pads=[1, 0, 0, 1]))
    x = net.op("Relu", net.op("Add", net.conv(x, (12, 12), 1), x))
    x = net.op("Flatten", net.op("Sigmoid", net.conv(x, (12, 4), 1)))
    graph = net.graph(tmp_path, net.op("LeakyRelu", net.op("Gemm", x, net.weight(120, 6), net.weight(6))))
    inputs = random_inputs(graph)
    results = run(graph, target, inputs, {s.workload: None for s in graph.anchors})
    for name, value in expected(net.model(*results), inputs).items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5)


def test_every_function_is_scheduled(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.op("Softmax", net.conv(net.input(1, 4, 8, 8), (4, 24)), axis=1)
    x = net.op("Transpose", net.op("Exp", x), perm=[0, 2, 3, 1])
    graph = net.graph(tmp_path, x)
    module = lowered(graph, target).module
    functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) >= 3
    assert all("tirx.is_scheduled" in f.attrs for f in functions)


def test_elementwise_chains_are_one_function(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), (4, 16), 1)
    graph = net.graph(tmp_path, net.op("Exp", net.op("Abs", net.op("Mul", x, net.op("Tanh", x)))))
    assert len([name for name in calls(graph, target) if "conv" not in name]) == 1


def test_default_configs_are_valid(tmp_path: Path, target: Target) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.conv(net.input(1, 32, 14, 14), (32, 64), pads=[1, 1, 1, 1]))
    (workload,) = [s.workload for s in graph.anchors]
    assert default_config(workload, target) is not None
    assert default_config(workload, Target({"kind": "c"})) is None


@st.composite
def networks(draw: st.DrawFn) -> tuple[Net, list[str]]:
    """Random directed graphs of convolutions, pools, element-wise operators and concatenations."""
    net = Net(seed=draw(st.integers(0, 99)))
    channels = draw(st.sampled_from([3, 8, 16]))
    values = [
        (net.input(draw(st.integers(1, 2)), channels, draw(st.integers(4, 9)), draw(st.integers(4, 9))), channels)
    ]
    for _ in range(draw(st.integers(2, 6))):
        (x, c), (y, d) = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        step = draw(st.sampled_from(["conv", "conv", "depthwise", "act", "add", "concat", "pool", "norm"]))
        if step == "conv":
            out = draw(st.sampled_from([5, 16, 24]))
            values.append((net.conv(x, (c, out), pads=[1, 1, 1, 1], bias=draw(st.booleans())), out))
        elif step == "depthwise":
            values.append((net.conv(x, (1, c), pads=[1, 1, 1, 1], group=c), c))
        elif step == "act":
            values.append((net.op(draw(st.sampled_from(["Relu", "Tanh", "Sigmoid", "HardSwish"])), x), c))
        elif step == "concat":
            values.append((net.op("Concat", x, y, axis=1), c + d))
        elif step == "pool":
            kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
            values.append((net.op(kind, x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), c))
        elif step == "norm":
            values.append((net.batch_norm(x, c), c))
        elif c == d:
            values.append((net.op("Add", x, y), c))
    results = {values[-1][0], *draw(st.lists(st.sampled_from([v for v, _ in values]), max_size=2))}
    return net, sorted(results)


@pytest.mark.sampled(2)
@given(networks())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_network(tmp_path: Path, target: Target, network: tuple[Net, list[str]]) -> None:
    net, outputs = network
    assert_computes(net, tmp_path, target, outputs)


SLICES = {
    "whole blocks": ([1], [16], [48], [1]),
    "the rest": ([1], [32], [2**31 - 1], [1]),
    "part of a block": ([1], [5], [21], [1]),
    "every other channel": ([1], [0], [50], [2]),
    "rows and columns": ([2, 3], [1, 0], [7, 8], [2, 3]),
    "from the end": ([2], [-3], [-1], [1]),
    "backwards": ([3], [7], [0], [-2]),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices(tmp_path: Path, target: Target, name: str) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 8, 9), (4, 50), 1)
    part = net.op("Slice", x, *(net.constant(np.array(v)) for i, v in enumerate(SLICES[name][j] for j in (1, 2, 0, 3))))
    assert_computes(net, tmp_path, target, [net.op("Relu", part), part])


@pytest.mark.parametrize("sizes", [[16, 32, 2], [10, 40]])
def test_a_split_and_its_parts(tmp_path: Path, target: Target, sizes: list[int]) -> None:
    net = Net()
    x = net.conv(net.input(1, 4, 8, 9), (4, 50), 1)
    first = net.op("Split", x, net.constant(np.array(sizes)), outputs=len(sizes), axis=1)
    outputs = [net.op("Relu", f"{first}_1"), net.conv(first, (sizes[0], 4), 1)]
    graph = assert_computes(net, tmp_path, target, outputs)
    if not any(size % 16 for size in sizes[:-1]):
        assert conversions(graph, target) <= 2 + 1  # data in, and the results out


def test_a_dense_layer_on_sequences(tmp_path: Path, target: Target) -> None:
    net = Net()
    x = net.input(2, 5, 12)
    y = net.op("Relu", net.op("Add", net.op("MatMul", x, net.weight(12, 12)), net.weight(12)))
    y = net.op("Add", net.op("MatMul", y, net.weight(12, 12)), x)
    graph = assert_computes(net, tmp_path, target, [y])
    assert [s.workload.epilogue for s in graph.anchors] == [("bias", "relu"), ("add",)]
    assert graph.anchors[0].workload.attrs["rows"] == 10
    inputs = random_inputs(graph)
    (plain,) = run(graph, target, inputs, {s.workload: None for s in graph.anchors}).values()
    (wanted,) = expected(net.model(y), inputs).values()
    np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-5)
