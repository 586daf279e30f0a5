"""Convolutions in one or three dimensions and transposed ones become two-dimensional ones and compute as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from templates.workloads import Conv2d, anchor_of
from tests.tuner.graph.networks import Net, assert_as_onnxruntime
from tests.tuner.graph.test_fuse import epilogues, plain_operators

IMAGE, ROW, VOLUME = (2, 4, 5, 6), (2, 4, 11), (2, 4, 7, 5, 6)


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def random_window(rng: np.random.Generator, rank: int) -> tuple[list[int], dict[str, Any]]:
    """A kernel and the attributes of a transposed convolution that has results."""
    kernel = rng.integers(1, 5, rank).tolist()
    strides, dilations = rng.integers(1, 4, rank).tolist(), rng.integers(1, 3, rank).tolist()
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = [int(rng.integers(0, r // 2 + 1)) for r in (*reach, *reach)]
    more = [int(rng.integers(0, s)) for s in strides]
    return kernel, {
        "strides": strides, "dilations": dilations, "pads": pads, "output_padding": more, "kernel_shape": kernel,
        "group": int(rng.choice([1, 2, 4])),
    }  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [IMAGE, ROW])
def test_transposed_ones_of_every_window(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Thirty at a time, since one compilation is cheaper than thirty."""
    net, rng = Net(), np.random.default_rng(7)
    x, outputs = net.input(*shape), []
    for _ in range(30):
        kernel, attrs = random_window(rng, len(shape) - 2)
        outputs.append(net.op("ConvTranspose", x, net.weight(4, 3, *kernel), net.weight(3 * attrs["group"]), **attrs))
    assert_as_onnxruntime(net, tmp_path, *outputs, x=image(*shape))
    graph = net.graph(tmp_path, *outputs)
    assert len(graph.anchors) == 30
    assert all(isinstance(anchor_of(a.workload), Conv2d) for a in graph.anchors)


def test_one_dimensional_ones(tmp_path: Path) -> None:
    net, x = Net(), "x"
    net.input(*ROW)
    windows: list[dict[str, Any]] = [
        {"pads": [1, 1]}, {"strides": [2], "pads": [2, 0]}, {"dilations": [2]}, {"group": 2},
        {"group": 4, "pads": [0, 2]},
    ]  # fmt: skip
    outputs = [net.op("Conv", x, net.weight(8, 4 // w.get("group", 1), 3), net.weight(8), **w) for w in windows]
    assert_as_onnxruntime(net, tmp_path, *outputs, x=image(*ROW))
    assert len(net.graph(tmp_path, *outputs).anchors) == len(windows)


def test_a_chain_along_time_has_no_step_between(tmp_path: Path) -> None:
    """What is element-wise between two convolutions is fused, and the row stays an image."""
    net = Net()
    x = net.input(*ROW)
    first = net.op("Relu", net.batch_norm(net.op("Conv", x, net.weight(4, 1, 3), group=4, pads=[1, 1]), 4))
    second = net.batch_norm(net.op("Conv", first, net.weight(4, 4, 1)), 4)
    out = net.op("Relu", net.op("Add", second, first))
    graph = net.graph(tmp_path, out)
    assert epilogues(graph) == [("bias", "relu"), ("bias", "add", "relu")]
    assert plain_operators(graph) == ["expand_dims", "squeeze"]
    assert_as_onnxruntime(net, tmp_path, out, x=image(*ROW))


def test_what_follows_a_transposed_one_is_its_epilogue(tmp_path: Path) -> None:
    net = Net()
    up = net.op("ConvTranspose", net.input(*IMAGE), net.weight(4, 3, 2, 2), strides=[2, 2])
    normal = net.batch_norm(up, 3)
    silu = net.op("Mul", normal, net.op("Sigmoid", normal))
    graph = net.graph(tmp_path, silu)
    assert epilogues(graph) == [("bias", "silu")]
    (step,) = graph.anchors
    assert step.node == "/convtranspose_0/ConvTranspose"
    conv = anchor_of(step.workload)
    assert isinstance(conv, Conv2d)
    assert (conv.out_channels, conv.kernel) == (12, (1, 1))
    assert plain_operators(graph) == ["call_tir"]
    assert_as_onnxruntime(net, tmp_path, silu, x=image(*IMAGE))


def test_an_operand_of_another_shape_is_added_behind(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 4, 5, 6)
    up = net.op("ConvTranspose", x, net.weight(4, 3, 2, 2), strides=[2, 2])
    out = net.op("Add", up, net.weight(1, 1, 10, 12))
    late = net.op("Mul", up, net.op("ReduceMean", up, axes=[1]))
    assert_as_onnxruntime(net, tmp_path, out, late, x=image(1, 4, 5, 6))


def test_a_weight_that_is_computed_stays_as_it_was(tmp_path: Path) -> None:
    net = Net()
    weight = net.op("Mul", net.input(4, 3, 2, 2, name="w"), net.scalar(0.5))
    out = net.op("ConvTranspose", net.input(*IMAGE), weight, strides=[2, 2])
    assert net.graph(tmp_path, out).anchors == ()
    assert_as_onnxruntime(net, tmp_path, out, x=image(*IMAGE), w=image(4, 3, 2, 2))


def test_operands_that_are_repeated_along_channels_are_added_behind(tmp_path: Path) -> None:
    """One result of a single channel, and constants of more channels than a result has."""
    net, x = Net(), "x"
    net.input(*IMAGE)
    many, one = (net.op("ConvTranspose", x, net.weight(4, n, 2, 2), strides=[2, 2]) for n in (3, 1))
    wider = net.op("Mul", one, net.weight(1, 3, 1, 1))
    assert_as_onnxruntime(net, tmp_path, net.op("Add", many, one), wider, x=image(*IMAGE))


def test_three_dimensional_ones(tmp_path: Path) -> None:
    net, x = Net(), "x"
    net.input(*VOLUME)
    windows: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
        ((3, 1, 2), {"strides": [2, 1, 2], "pads": [2, 0, 1, 0, 1, 0]}),
        ((2, 2, 2), {"dilations": [3, 2, 1]}),
        ((1, 3, 3), {"strides": [3, 2, 2]}),
        ((3, 2, 2), {"group": 2, "pads": [1, 0, 0, 0, 1, 1]}),
        ((3, 3, 3), {"group": 4, "pads": [1, 1, 1, 1, 1, 1], "strides": [1, 2, 1]}),
        ((5, 1, 1), {"group": 4}),
    ]
    outputs = [
        net.op("Conv", x, net.weight(8, 4 // attrs.get("group", 1), *kernel), net.weight(8), **attrs)
        for kernel, attrs in windows
    ]
    assert_as_onnxruntime(net, tmp_path, *outputs, x=image(*VOLUME))
    graph = net.graph(tmp_path, *outputs)
    assert len(graph.anchors) == 5 + 3 + 5
    assert all(isinstance(anchor_of(a.workload), Conv2d) for a in graph.anchors)


def test_what_is_element_wise_between_volumes_is_fused(tmp_path: Path) -> None:
    """Between two convolutions the planes stay images."""
    net = Net()
    x = net.input(*VOLUME)
    window: dict[str, Any] = {"pads": [1, 1, 1, 1, 1, 1]}
    first = net.op("Relu", net.batch_norm(net.op("Conv", x, net.weight(8, 4, 3, 3, 3), **window), 8))
    second = net.batch_norm(net.op("Conv", first, net.weight(8, 8, 3, 1, 1), pads=[1, 0, 0, 1, 0, 0]), 8)
    out = net.op("Relu", net.op("Add", second, first))
    graph = net.graph(tmp_path, out)
    assert epilogues(graph) == [("bias", "relu"), ("bias", "add", "relu")]
    assert plain_operators(graph).count("permute_dims") == 2
    assert_as_onnxruntime(net, tmp_path, out, x=image(*VOLUME))
