"""Fusion: which operators become an anchor's epilogue, and what is folded into its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from templates.reference import conv2d
from templates.workloads import Conv2d, Dense, anchor_of
from tests.tuner.graph.networks import Net
from tuner.graph import FusedGraph
from tuner.graph.fusion.activations import merge_clips
from tuner.graph.fusion.steps import PlainStep


def epilogues(graph: FusedGraph) -> list[tuple[str, ...]]:
    return [step.workload.epilogue for step in graph.anchors]


def plain_operators(graph: FusedGraph) -> list[str]:
    return [s.value.op.name.removeprefix("relax.") for s in graph.steps if isinstance(s, PlainStep)]


def test_batch_normalisation_is_folded_in_float64(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 8, 8), (3, 5), bias=True)
    graph = net.graph(tmp_path, net.op("Relu", net.batch_norm(conv, 5)))
    (step,) = graph.steps
    assert epilogues(graph) == [("bias", "relu")]
    assert step.node == "/conv_0/Conv"
    weight, bias, gamma, beta, mean, variance = (
        np.frombuffer(t.raw_data, np.float32).reshape(t.dims).astype(np.float64)
        for t in (net.weights[i] for i in (0, 1, 3, 4, 5, 2))
    )
    scale = gamma / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(graph.anchors[0].weight, weight * scale.reshape(-1, 1, 1, 1), rtol=3e-7)
    np.testing.assert_allclose(graph.anchors[0].bias, (bias - mean) * scale + beta, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "shape", "front"),
    [
        ("Add", (4, 1, 1), False),
        ("Add", (1, 4, 1, 1), True),
        ("Sub", (1, 4, 1, 1), False),
        ("Sub", (4, 1, 1), True),
        ("Mul", (), False),
        ("Mul", (1, 4, 1, 1), True),
        ("Div", (1, 4, 1, 1), False),
        ("Div", (1, 1, 1, 1), False),
    ],
)
def test_constants_per_channel_are_folded(tmp_path: Path, operator: str, shape: tuple[int, ...], front: bool) -> None:
    net = Net(seed=3)
    x = net.input(2, 3, 5, 6)
    conv, value = net.conv(x, (3, 4)), net.weight(*shape)
    graph = net.graph(tmp_path, net.op(operator, *((value, conv) if front else (conv, value))))
    (anchor,) = graph.anchors
    assert len(graph.steps) == 1
    assert anchor.workload.epilogue == ("bias",)
    kind = anchor_of(anchor.workload)
    assert isinstance(kind, Conv2d)
    data = net.rng.standard_normal(kind.data_shape)
    arrays = [np.frombuffer(t.raw_data, np.float32).reshape(t.dims).astype(np.float64) for t in net.weights]
    original = conv2d(kind, data, arrays[0]) + arrays[1].reshape(1, -1, 1, 1)
    a, b = (arrays[2], original) if front else (original, arrays[2])
    wanted = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[operator](a, b)
    assert anchor.bias is not None
    folded = conv2d(kind, data, anchor.weight) + anchor.bias.reshape(1, -1, 1, 1)
    np.testing.assert_allclose(folded, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(6,), (5, 1), (1, 1, 5, 6), (2, 1, 1, 1)])
def test_constants_along_other_axes_are_not_folded(tmp_path: Path, shape: tuple[int, ...]) -> None:
    net = Net()
    conv = net.conv(net.input(2, 3, 7, 8), (3, 5))
    graph = net.graph(tmp_path, net.op("Mul", conv, net.weight(*shape)))
    assert plain_operators(graph) == ["multiply"]


def test_division_of_a_constant_and_by_zero_is_not_folded(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 5, 5), (3, 2))
    by_zero = net.op("Div", conv, net.constant(np.array([1, 0], np.float32).reshape(1, 2, 1, 1)))
    inverse = net.op("Div", net.scalar(1), net.conv("x", (3, 2)))
    assert plain_operators(net.graph(tmp_path, by_zero, inverse)) == ["divide", "divide"]


def gelu(net: Net, x: str, by_tanh: bool = False) -> str:
    """A GELU in the operators that PyTorch's exporter writes."""
    inner = net.op("Div", x, net.scalar(2**0.5))
    if by_tanh:
        curve = net.op("Add", x, net.op("Mul", net.scalar(0.044715), net.op("Pow", x, net.scalar(3))))
        inner = net.op("Mul", net.scalar((2 / np.pi) ** 0.5), curve)
    gate = net.op("Add", net.op("Tanh" if by_tanh else "Erf", inner), net.scalar(1))
    if by_tanh:
        return net.op("Mul", net.op("Mul", net.scalar(0.5), x), gate)
    return net.op("Mul", net.op("Mul", x, gate), net.scalar(0.5))


def clip(net: Net, x: str, low: float | None, high: float | None) -> str:
    return net.op("Clip", x, "" if low is None else net.scalar(low), *([] if high is None else [net.scalar(high)]))


ACTIVATIONS = {
    "relu": lambda net, x: net.op("Relu", x),
    "clip:0.0:6.0": lambda net, x: clip(net, x, 0, 6),
    "clip:-1.0:inf": lambda net, x: clip(net, x, -1, None),
    "clip:-inf:2.5": lambda net, x: clip(net, x, None, 2.5),
    "leaky_relu:0.1": lambda net, x: net.op("LeakyRelu", x, alpha=0.1),
    "sigmoid": lambda net, x: net.op("Sigmoid", x),
    "tanh": lambda net, x: net.op("Tanh", x),
    "silu": lambda net, x: net.op("Mul", net.op("Sigmoid", x), x),
    "hardswish": lambda net, x: net.op("HardSwish", x),
    "hardsigmoid:0.2:0.5": lambda net, x: net.op("HardSigmoid", x),
    "hardsigmoid:0.16666666666666666:0.5": lambda net, x: net.op(
        "Div", clip(net, net.op("Add", net.scalar(3), x), 0, 6), net.scalar(6)
    ),
    "gelu": gelu,
    "gelu_tanh": lambda net, x: gelu(net, x, by_tanh=True),
    "mish": lambda net, x: net.op("Mul", x, net.op("Tanh", net.op("Softplus", x))),
    "softplus": lambda net, x: net.op("Softplus", x),
    "elu:1.0": lambda net, x: net.op("Elu", x),
}


@pytest.mark.parametrize("token", ACTIVATIONS)
def test_activations_become_tokens(tmp_path: Path, token: str) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    graph = net.graph(tmp_path, ACTIVATIONS[token](net, conv))
    assert len(graph.steps) == 1
    assert epilogues(graph) == [("bias", token)]


def test_hard_swish_in_other_words(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    gate = clip(net, net.op("Add", conv, net.scalar(3)), 0, 6)
    graph = net.graph(tmp_path, net.op("Mul", net.op("Mul", conv, gate), net.scalar(1 / 6)))
    assert epilogues(graph) == [("bias", "hardswish")]


def test_other_compositions_stay_operators(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    graph = net.graph(tmp_path, net.op("Mul", conv, net.op("Tanh", conv)))
    assert epilogues(graph) == [("bias",)]
    assert plain_operators(graph) == ["tanh", "multiply"]


def test_old_clip_with_attributes(tmp_path: Path) -> None:
    net = Net(opset=10)
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    assert epilogues(net.graph(tmp_path, net.op("Clip", conv, min=0.0, max=6.0))) == [("bias", "clip:0.0:6.0")]


def test_adjacent_clips_are_one() -> None:
    assert merge_clips(["bias", "relu", "clip:-inf:6.0"]) == ["bias", "clip:0.0:6.0"]
    assert merge_clips(["clip:0.0:6.0", "relu", "tanh", "relu", "relu"]) == ["clip:0.0:6.0", "tanh", "relu"]
    assert merge_clips(["clip:0.0:1.0", "clip:2.0:3.0"]) == ["clip:2.0:2.0"]


def test_a_residual_of_two_convolutions_belongs_to_the_later(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 4, 6, 6)
    main = net.conv(x, (4, 8), pads=[1, 1, 1, 1])
    shortcut = net.conv(x, (4, 8), kernel=1)
    graph = net.graph(tmp_path, net.op("Relu", net.op("Add", main, shortcut)))
    assert epilogues(graph) == [("bias",), ("bias", "add", "relu")]
    assert graph.anchors[1].node == "/conv_1/Conv"
    assert graph.anchors[1].extras[0].same_as(graph.anchors[0].out)


def test_a_residual_chain_with_steps_before_and_after(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 4, 6, 6), (4, 4), kernel=1))
    y = net.op("LeakyRelu", net.conv(x, (4, 4), kernel=1), alpha=0.2)
    out = net.op("Sigmoid", net.op("Sum", x, y))
    graph = net.graph(tmp_path, out)
    assert epilogues(graph) == [("bias", "relu"), ("bias", "leaky_relu:0.2", "add", "sigmoid")]
    assert len(graph.steps) == 2


def test_a_value_with_two_readers_ends_the_chain(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    graph = net.graph(tmp_path, net.op("Relu", conv), net.op("Tanh", conv))
    assert epilogues(graph) == [("bias",)]
    assert plain_operators(graph) == ["nn.relu", "tanh"]


def test_a_result_inside_the_network_ends_the_chain(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    graph = net.graph(tmp_path, net.op("Relu", conv), conv)
    assert epilogues(graph) == [("bias",)]


def test_a_sum_with_itself_and_a_broadcast_are_no_residuals(tmp_path: Path) -> None:
    net = Net()
    net.input(1, 4, 1, 1, name="bias")
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    graph = net.graph(tmp_path, net.op("Add", conv, conv), net.op("Add", net.conv("x", (3, 4)), "bias"))
    assert epilogues(graph) == [("bias",), ("bias",)]
    assert plain_operators(graph) == ["add", "add"]


@pytest.mark.parametrize("opset", [10, 13, 18])
def test_a_pad_becomes_the_convolutions(tmp_path: Path, opset: int) -> None:
    net = Net(opset=opset)
    x, pads = net.input(1, 3, 6, 7), [0, 0, 1, 2, 0, 0, 3, 0]
    given = {"pads": pads} if opset == 10 else {}
    reads = [x] if opset == 10 else [x, net.constant(np.array(pads, np.int64))]
    graph = net.graph(tmp_path, net.conv(net.op("Pad", *reads, **given), (3, 4), pads=[0, 1, 0, 1]))
    (step,) = graph.steps
    assert step.workload.attrs["padding"] == (1, 3, 3, 1)


def test_a_pad_with_another_value_or_over_channels_stays(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 3, 6, 7)
    ones = net.op("Pad", x, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])), net.scalar(1))
    channels = net.op("Pad", x, net.constant(np.array([0, 1, 0, 0, 0, 0, 0, 0])))
    graph = net.graph(tmp_path, net.conv(ones, (3, 4)), net.conv(channels, (4, 4)))
    assert plain_operators(graph) == ["nn.pad", "nn.pad"]


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_padding(tmp_path: Path, mode: str) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 7, 10), (3, 4), kernel=(3, 4), strides=[2, 3], auto_pad=mode)
    (step,) = net.graph(tmp_path, conv).steps
    assert (
        step.workload.attrs["padding"]
        == {
            "SAME_UPPER": (1, 1, 1, 2),
            "SAME_LOWER": (1, 2, 1, 1),
            "VALID": (0, 0, 0, 0),
        }[mode]
    )
    kind = anchor_of(step.workload)
    assert isinstance(kind, Conv2d)
    assert kind.out_shape[2:] == ((4, 4) if mode != "VALID" else (3, 3))


@pytest.mark.parametrize(("mode", "padding"), [("SAME_UPPER", (2, 4, 2, 5)), ("SAME_LOWER", (2, 5, 2, 4))])
def test_automatic_padding_counts_what_dilation_leaves_out(tmp_path: Path, mode: str, padding: tuple) -> None:
    net, given = Net(), {"strides": [2, 3], "dilations": [2, 3], "auto_pad": mode}
    (step,) = net.graph(tmp_path, net.conv(net.input(1, 3, 7, 10), (3, 4), kernel=(3, 4), **given)).steps
    assert step.workload.attrs["padding"] == padding
    kind = anchor_of(step.workload)
    assert isinstance(kind, Conv2d)
    assert kind.out_shape[2:] == (4, 4)


def test_dense_layers(tmp_path: Path) -> None:
    net = Net()
    x = net.input(3, 8)
    hidden = net.op("Relu", net.op("Gemm", x, net.weight(5, 8), net.weight(5), transB=1))
    scaled = net.op("Gemm", hidden, net.weight(5, 7), net.weight(1, 7), beta=0.5)
    out = net.op("Add", net.op("MatMul", scaled, net.weight(7, 7)), scaled)
    graph = net.graph(tmp_path, out)
    assert [anchor_of(s.workload) for s in graph.anchors] == [Dense(3, 8, 5), Dense(3, 5, 7), Dense(3, 7, 7)]
    assert epilogues(graph) == [("bias", "relu"), ("bias",), ("add",)]
    assert all(s.weight.shape == anchor_of(s.workload).weight_shape for s in graph.anchors)


def test_products_without_constant_weights_are_no_anchors(tmp_path: Path) -> None:
    net = Net()
    net.input(4, 5, name="w")
    graph = net.graph(tmp_path, net.op("MatMul", net.input(2, 4), "w"))
    assert graph.anchors == ()


def test_dropout_identity_and_dead_nodes_vanish(tmp_path: Path) -> None:
    net = Net()
    conv = net.conv(net.input(1, 3, 6, 6), (3, 4))
    net.op("Tanh", conv)
    kept = net.op("Dropout", net.op("Identity", conv), net.scalar(0.3), outputs=2)
    graph = net.graph(tmp_path, net.op("Relu", kept))
    assert [s.workload.epilogue for s in graph.anchors] == [("bias", "relu")]
    assert len(graph.steps) == 1
