"""Recurrent layers with the usual gates become one operator with the loop over the steps; others are written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_as_onnxruntime, assert_close, expected, run
from tuner.graph import FusedGraph, OperatorStep
from tuning_db.record import Workload
from vision_ops.recurrent_layer import Recurrent

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def workloads(graph: FusedGraph) -> list[Workload]:
    return [s.workload for s in graph.steps if isinstance(s, OperatorStep) and s.workload.op == "recurrent"]


def loops(graph: FusedGraph) -> list[Recurrent]:
    return [Recurrent.of(workload) for workload in workloads(graph)]


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


ZEROS = {"int8": 0, "int8 off the middle": 3, "uint8": 128, "uint8 off the middle": 7}


def quantised_pair(kind: str, directions: int, by_column: bool) -> tuple[Net, Net, str, str]:
    """Networks of a DynamicQuantizeLSTM of 20 units, and of an LSTM with the same weights in float32; their outputs."""
    rng, hidden, size = np.random.default_rng(directions), 20, 9
    narrow, wide = Net(), Net()
    shape = (directions, 4 * hidden) if by_column else (directions,)
    info = np.iinfo(kind.split()[0])
    reads, real = [], []
    for rows, step in ((size, 1e-4), (hidden, 4e-3)):
        zero = np.full(shape, ZEROS[kind], info.dtype)
        weight = rng.integers(info.min, info.max + 1, (directions, rows, 4 * hidden)).astype(info.dtype)
        if zero.flat[0] in (0, 3):
            weight = np.clip(weight, -120, 120)
        scale = rng.uniform(0.5, 1.5, shape).astype(np.float32) * np.float32(step)
        spread = (directions, 1, -1)
        steps = weight.astype(np.float32) - zero.astype(np.float32).reshape(spread)
        real.append(np.ascontiguousarray((steps * scale.reshape(spread)).transpose(0, 2, 1)))
        reads.append((narrow.constant(weight), narrow.constant(scale), narrow.constant(zero)))
    bias = rng.standard_normal((directions, 8 * hidden)).astype(np.float32) / 4
    (w, *w_steps), (r, *r_steps) = reads
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"}
    operands = [narrow.input(5, 2, size), w, r, narrow.constant(bias), "", "", "", "", *w_steps, *r_steps]
    out = narrow.op("DynamicQuantizeLSTM", *operands, outputs=3, domain="com.microsoft", **attrs)
    x = wide.input(5, 2, size)
    same = wide.op("LSTM", x, *(wide.constant(part) for part in real), wide.constant(bias), outputs=3, **attrs)
    return narrow, wide, out, same


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", ZEROS)
def test_quantised_layers_keep_weights_of_eight_bits(
    tmp_path: Path, kind: str, directions: int, by_column: bool
) -> None:
    """Their results are those of the same layer in float32, since these inputs are whole numbers of 0 to 255, which are
    quantised without an error. onnxruntime quantises the state, and is further away."""
    net, wide, out, same = quantised_pair(kind, directions, by_column)
    x = np.random.default_rng(1).integers(0, 256, (5, 2, 9)).astype(np.float32)
    x[0, 0, :2] = 0, 255
    graph = net.graph(tmp_path, *(out if i == 0 else f"{out}_{i}" for i in range(3)))
    (workload,) = workloads(graph)
    assert workload.dtype == ("float32" if kind == "uint8 off the middle" else "int8")
    assert workload.attrs["directions"] == directions
    names = [(name, name.replace(out, same)) for name in (t.name for t in graph.model.outputs)]
    wanted = expected(wide.model(*(other for _, other in names)), {"x": x})
    assert_close(run(graph, host_target(), {"x": x}), {name: wanted[other] for name, other in names})
    if not by_column or ZEROS[kind] == 0:  # onnxruntime refuses zero points of columns
        assert_as_onnxruntime(net, tmp_path, out, tolerance=2e-2, x=x)
