"""Constants on the ONNX graph: what exporters compute from shapes is known before the import."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from tvm.target import Target

from tests.tuner.graph.networks import Net, assert_computes
from tuner.devices import open_device
from tuner.graph.importers.onnx.fold import fold_constants


def operators(model: onnx.ModelProto) -> list[str]:
    fold_constants(model)
    return [node.op_type for node in model.graph.node]


def halves(net: Net, x: str) -> str:
    """torch.chunk as its exporter writes it."""
    size = net.op("Gather", net.op("Shape", x), net.constant(np.array(1)), axis=0)
    half = net.op("Div", net.op("Add", size, net.constant(np.array(1))), net.constant(np.array(2)))
    ends = [
        net.op("Unsqueeze", net.op("Mul", half, net.constant(np.array(i))), net.constant(np.array([0]))) for i in (1, 2)
    ]
    axes = net.constant(np.array([1]))
    first = net.op("Slice", x, net.constant(np.array([0])), ends[0], axes)
    second = net.op("Slice", x, ends[0], ends[1], axes)
    return net.op("Concat", second, first, axis=1)


def test_slices_by_computed_bounds(tmp_path: Path) -> None:
    target: Target = open_device("cpu", 1).target
    net = Net()
    out = halves(net, net.op("Relu", net.conv(net.input(1, 3, 6, 6), (3, 32), 1)))
    assert operators(net.model(out)) == ["Conv", "Relu", "Slice", "Slice", "Concat"]
    assert_computes(net, tmp_path, target, [out])


def test_shapes_behind_computed_shapes(tmp_path: Path) -> None:
    """The second round of inference knows what the first one folded."""
    net = Net()
    x = net.input(2, 3, 4)
    rows = net.op("Gather", net.op("Shape", x), net.constant(np.array([0])), axis=0)
    flat = net.op("Reshape", x, net.op("Concat", rows, net.constant(np.array([-1])), axis=0))
    columns = net.op("Gather", net.op("Shape", flat), net.constant(np.array(1)), axis=0)
    out = net.op("Div", flat, net.op("Cast", columns, to=TensorProto.FLOAT))
    assert operators(net.model(out)) == ["Reshape", "Div"]
    target: Target = open_device("cpu", 1).target
    assert_computes(net, tmp_path, target, [out])


def test_random_values_and_unknown_shapes_stay() -> None:
    net = Net()
    x = net.input(2, 3)
    shape = net.op("Shape", x)
    noise = net.op("RandomNormalLike", net.weight(3))
    assert operators(net.model(shape, noise)) == ["RandomNormalLike"]
    net = Net()
    many = net.op("NonZero", net.input(2, 3))
    out = net.op("Cast", net.op("Shape", many), to=TensorProto.FLOAT)
    assert operators(net.model(out)) == ["NonZero", "Shape", "Cast"]
