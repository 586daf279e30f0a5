"""Recurrent layers with the usual gates become one operator with the loop over the steps; others are written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tuner.graph.networks import Net, assert_as_onnxruntime
from tuner.graph import FusedGraph, OperatorStep
from vision_ops.recurrent_layer import Recurrent

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def loops(graph: FusedGraph) -> list[Recurrent]:
    return [
        Recurrent.of(s.workload) for s in graph.steps if isinstance(s, OperatorStep) and s.workload.op == "recurrent"
    ]


def layer(net: Net, kind: str, x: str, size: int, hidden: int, **attrs: Any) -> str:
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    rows = GATES[kind] * hidden
    weights = [net.weight(directions, rows, n, scale=0.3) for n in (size, hidden)]
    if kind == "GRU":
        attrs.setdefault("linear_before_reset", 1)
    return net.op(kind, x, *weights, net.weight(directions, 2 * rows), hidden_size=hidden, outputs=1, **attrs)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", GATES)
def test_usual_layers_are_one_operator(tmp_path: Path, kind: str) -> None:
    """Units that do not fill a block are filled up."""
    net = Net()
    out = layer(net, kind, net.input(5, 2, 7), 7, 20, direction="bidirectional")
    (found,) = loops(net.graph(tmp_path, out))
    assert (found.kind, found.steps, found.batch, found.hidden, found.directions) == (kind.lower(), 5, 2, 32, 2)
    assert_as_onnxruntime(net, tmp_path, out, x=numbers(5, 2, 7))


def test_layers_above_each_other_and_by_batch(tmp_path: Path) -> None:
    """onnxruntime does not compute what is laid out by batch."""
    net = Net(opset=14)
    first = layer(net, "LSTM", net.input(2, 6, 7), 7, 16, layout=1)  # (batch, steps, 1, hidden)
    rows = net.op("Reshape", first, net.constant(np.array([2, 6, 16])))
    out = layer(net, "GRU", net.op("Transpose", rows, perm=[1, 0, 2]), 16, 12, direction="reverse")
    lstm, gru = loops(net.graph(tmp_path, out))
    assert (lstm.batch, lstm.steps, gru.reverse, gru.hidden) == (2, 6, True, 16)


def test_a_long_sequence(tmp_path: Path) -> None:
    net = Net()
    out = layer(net, "LSTM", net.input(3000, 1, 4), 4, 16)
    assert loops(net.graph(tmp_path, out))[0].steps == 3000
    assert_as_onnxruntime(net, tmp_path, out, x=numbers(3000, 1, 4))


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("LSTM", {"clip": 1.0}),
        ("LSTM", {"input_forget": 1}),
        ("GRU", {"linear_before_reset": 0}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_others_are_written_out(tmp_path: Path, kind: str, attrs: dict[str, Any]) -> None:
    net = Net()
    out = layer(net, kind, net.input(3, 2, 4), 4, 16, **attrs)
    assert not loops(net.graph(tmp_path, out))


def test_activations_that_are_named_are_usual_too(tmp_path: Path) -> None:
    net = Net()
    out = layer(net, "LSTM", net.input(3, 2, 4), 4, 16, activations=["Sigmoid", "Tanh", "Tanh"])
    assert len(loops(net.graph(tmp_path, out))) == 1
