"""Attention becomes one operator, however it is written and wherever its operands are, and computes the same."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

from templates.attention import Attention
from tests.tuner.graph.networks import Net, assert_as_onnxruntime
from tuner.graph import FusedGraph, OperatorStep

TOKENS, HEADS, DEPTH = 49, 3, 16


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def attentions(graph: FusedGraph) -> list[Attention]:
    return [
        Attention.of(s.workload) for s in graph.steps if isinstance(s, OperatorStep) and s.workload.op == "attention"
    ]


def operands(net: Net, batch: int) -> tuple[str, str, str]:
    """Cut queries, keys (transposed) and values (batch, heads, ..) out of one projection, as vision transformers do."""
    projected = net.input(batch, TOKENS, 3 * HEADS * DEPTH, name="a")
    five = net.op("Reshape", projected, net.constant(np.array([batch, TOKENS, 3, HEADS, DEPTH])))
    ordered = net.op("Transpose", five, perm=[2, 0, 3, 1, 4])
    query, key, value = (net.op("Gather", ordered, net.constant(np.array(i)), axis=0) for i in range(3))
    return query, net.op("Transpose", key, perm=[0, 1, 3, 2]), value


def weighted(net: Net, scores: str, value: str, batch: int) -> str:
    attended = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    tokens_first = net.op("Transpose", attended, perm=[0, 2, 1, 3])
    return net.op("Reshape", tokens_first, net.constant(np.array([batch, TOKENS, HEADS * DEPTH])))


@pytest.mark.parametrize("batch", [1, 4])
def test_of_one_projection(tmp_path: Path, batch: int) -> None:
    """Nothing is cut out or transposed: the operator reads the projection, and writes what the next layer reads."""
    net = Net()
    query, key, value = operands(net, batch)
    scores = net.op("MatMul", net.op("Mul", query, net.constant(np.float32(0.25))), key)
    out = weighted(net, scores, value, batch)
    graph = net.graph(tmp_path, out)
    (found,) = attentions(graph)
    assert (found.batch, found.heads, found.rows, found.columns) == (batch, HEADS, TOKENS, TOKENS)
    assert (found.order, found.scale, found.mask) == ("btha", 0.25, ())
    assert [found.operands[name][0].offset for name in ("query", "key", "value")] == [
        0,
        HEADS * DEPTH,
        2 * HEADS * DEPTH,
    ]
    assert_as_onnxruntime(net, tmp_path, out, a=numbers(batch, TOKENS, 3 * HEADS * DEPTH))


@pytest.mark.parametrize("mask", [(1, HEADS, TOKENS, TOKENS), (TOKENS, TOKENS), (2, 1, 1, TOKENS)])
@pytest.mark.parametrize("constant", [True, False])
def test_masks_are_added(tmp_path: Path, mask: tuple[int, ...], constant: bool) -> None:
    net = Net()
    query, key, value = operands(net, 2)
    scaled = net.op("Div", net.op("MatMul", query, key), net.constant(np.float32(4)))
    added = net.constant(numbers(*mask)) if constant else net.input(*mask, name="b")
    out = weighted(net, net.op("Add", scaled, added), value, 2)
    (found,) = attentions(net.graph(tmp_path, out))
    assert found.mask
    assert found.scale == 0.25
    given = {} if constant else {"b": numbers(*mask)}
    assert_as_onnxruntime(net, tmp_path, out, a=numbers(2, TOKENS, 3 * HEADS * DEPTH), **given)


def test_windows_have_a_bias_and_a_mask(tmp_path: Path) -> None:
    """Shifted windows add a bias of each head and a mask of each window, between which the axes are regrouped."""
    net, windows = Net(), 4
    query, key, value = operands(net, windows)
    biased = net.op("Add", net.op("MatMul", query, key), net.constant(numbers(1, HEADS, TOKENS, TOKENS)))
    five = net.op("Reshape", biased, net.constant(np.array([1, windows, HEADS, TOKENS, TOKENS])))
    hidden = np.where(numbers(1, windows, 1, TOKENS, TOKENS) > 0.5, np.float32(-100), np.float32(0))
    four = net.op(
        "Reshape",
        net.op("Add", five, net.constant(hidden)),
        net.constant(np.array([windows, HEADS, TOKENS, TOKENS])),
    )
    out = weighted(net, four, value, windows)
    (found,) = attentions(net.graph(tmp_path, out))
    assert found.operands["mask"][0].size == prod((windows, HEADS, TOKENS, TOKENS))
    assert_as_onnxruntime(net, tmp_path, out, a=numbers(windows, TOKENS, 3 * HEADS * DEPTH))


def test_tokens_along_the_last_axis(tmp_path: Path) -> None:
    """Behind a convolution keys and values have their tokens last, and so has the result."""
    net = Net()
    given = net.op("Reshape", net.input(1, 96, 6, 7, name="a"), net.constant(np.array([1, 2, 48, 42])))
    query = net.op("Split", given, net.constant(np.array([12, 12, 24])), axis=2, outputs=3)
    key, value = f"{query}_1", f"{query}_2"
    scores = net.op("MatMul", net.op("Transpose", query, perm=[0, 1, 3, 2]), key)
    weights = net.op("Softmax", net.op("Mul", scores, net.constant(np.float32(0.3))), axis=-1)
    out = net.op("MatMul", value, net.op("Transpose", weights, perm=[0, 1, 3, 2]))
    (found,) = attentions(net.graph(tmp_path, out))
    assert (found.order, found.depth, found.width) == ("bhat", 12, 24)
    assert [found.operands[name][0].token for name in ("query", "key", "value")] == [1, 1, 1]
    assert_as_onnxruntime(net, tmp_path, out, a=numbers(1, 96, 6, 7))


def test_weights_that_are_read_elsewhere_are_still_right(tmp_path: Path) -> None:
    net = Net()
    query, key, value = operands(net, 1)
    weights = net.op("Softmax", net.op("MatMul", query, key), axis=-1)
    attended, others = net.op("MatMul", weights, value), net.op("Relu", weights)
    assert_as_onnxruntime(net, tmp_path, attended, others, a=numbers(1, TOKENS, 3 * HEADS * DEPTH))


@pytest.mark.parametrize("key_heads", [6, 1])
def test_the_operator_of_onnx(tmp_path: Path, key_heads: int) -> None:
    """Keys and values that several heads share are read where they are, if all heads share them."""
    net = Net(opset=23)
    shapes = {"a": (2, 6, 49, 16), "b": (2, key_heads, 49, 16), "c": (2, key_heads, 49, 24)}
    out = net.op("Attention", *(net.input(*shape, name=name) for name, shape in shapes.items()), scale=0.2)
    (found,) = attentions(net.graph(tmp_path, out))
    assert (found.heads, found.scale, found.mask) == (6, pytest.approx(0.2), ())
    assert found.operands["key"][0].size == 2 * key_heads * 49 * 16
    assert_as_onnxruntime(net, tmp_path, out, **{name: numbers(*shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("change", ["softmax of columns", "scaled mask", "repeated heads"])
def test_what_is_none(tmp_path: Path, change: str) -> None:
    net = Net()
    query, key, value = operands(net, 1)
    if change == "repeated heads":
        key = net.op("Slice", key, *(net.constant(np.array([i])) for i in (0, 1, 1)))
    scores = net.op("MatMul", query, key)
    if change == "scaled mask":
        masked = net.op("Add", scores, net.constant(numbers(TOKENS, TOKENS)))
        scores = net.op("Mul", masked, net.constant(np.float32(0.5)))
    weights = net.op("Softmax", scores, axis=-2 if change == "softmax of columns" else -1)
    out = net.op("MatMul", weights, value)
    assert attentions(net.graph(tmp_path, out)) == []
    assert_as_onnxruntime(net, tmp_path, out, a=numbers(1, TOKENS, 3 * HEADS * DEPTH))
