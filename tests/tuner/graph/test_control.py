"""Control flow that depends on constants alone is written out; other is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_close, run
from tuner.errors import BadInput
from tuner.graph import fuse, load_onnx
from tuner.module import OnnxReference


def body(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str], **weights: np.ndarray) -> onnx.GraphProto:
    """A graph inside of a node; a loop's turn and condition are single values."""
    types = {"turn": TensorProto.INT64, "going": TensorProto.BOOL, "still": TensorProto.BOOL}

    def values(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), [] if n in types else None) for n in names
        ]

    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return helper.make_graph(nodes, "body", values(inputs), values(outputs), tensors)


def check(path: Path, *shape: int) -> None:
    graph = fuse(load_onnx(path))
    inputs = {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}
    assert_close(run(graph, host_target(), inputs), OnnxReference(path)(inputs))


@pytest.mark.parametrize("taken", [True, False])
def test_an_if_whose_condition_follows_from_shapes(tmp_path: Path, taken: bool) -> None:
    """Both branches have values of the same names, which the graph has too, and read some from outside."""
    net = Net()
    x = net.input(2, 3)
    rows = net.op("Gather", net.op("Shape", x), net.constant(np.array(0)))
    condition = net.op("Equal", rows, net.constant(np.array(2 if taken else 3)))
    one = body(
        [helper.make_node("Add", [x, "w0"], ["t"]), helper.make_node("Relu", ["t"], ["y"])], [], ["y"], w0=np.float32(2)
    )
    other = body([helper.make_node("Neg", [x], ["y"])], [], ["y"])
    out = net.op("Mul", net.op("If", condition, then_branch=one, else_branch=other), x)
    check(net.save(tmp_path / "m.onnx", out), 2, 3)


def test_an_if_in_an_if(tmp_path: Path) -> None:
    net = Net()
    x, yes = net.input(2, 3), net.constant(np.array(True))
    inner = body([helper.make_node("Add", ["t", x], ["y"])], [], ["y"])
    deeper = helper.make_node("If", [yes], ["y"], then_branch=inner, else_branch=inner)
    outer = body([helper.make_node("Relu", [x], ["t"]), deeper], [], ["y"])
    out = net.op("If", yes, then_branch=outer, else_branch=outer)
    check(net.save(tmp_path / "m.onnx", out), 2, 3)


@pytest.mark.parametrize(("turns", "opset"), [(1, 17), (3, 17), (2, 11)])
def test_a_loop_of_so_many_turns(tmp_path: Path, turns: int, opset: int) -> None:
    """It carries a sum, and puts out what it was after each turn, scaled by the turn's number."""
    net = Net(opset=opset)
    x = net.input(2, 3)
    nodes = [
        helper.make_node("Identity", ["going"], ["still"]),
        helper.make_node("Add", ["sum", x], ["next"]),
        helper.make_node("Cast", ["turn"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["next", "number"], ["scaled"]),
    ]
    loop = body(nodes, ["turn", "going", "sum"], ["still", "next", "scaled"])
    limit, going = net.constant(np.array(turns)), net.constant(np.array(True))
    last = net.op("Loop", limit, going, net.op("Relu", x), outputs=2, body=loop)
    check(net.save(tmp_path / "m.onnx", last, f"{last}_1"), 2, 3)


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("opset", [9, 17])
def test_a_scan(tmp_path: Path, opset: int, backwards: int) -> None:
    """Along the second axis of one input and the first of another; the sum so far is its state, which every turn puts
    out along the last axis. The body reads a weight from outside."""
    net = Net(opset=opset)
    scale = net.weight(3)
    nodes = [
        helper.make_node("Mul", ["part", scale], ["scaled"]),
        helper.make_node("Add", ["scaled", "more"], ["both"]),
        helper.make_node("Add", ["sum", "both"], ["next"]),
        helper.make_node("Neg", ["next"], ["negated"]),
    ]
    step = body(nodes, ["sum", "part", "more"], ["next", "negated"])
    start, x, more = net.weight(2, 3), net.input(2, 5, 3), net.weight(5, 2, 3)
    last = net.op(
        "Scan",
        *(start, x, more),
        outputs=2,
        body=step,
        num_scan_inputs=2,
        scan_input_axes=[1, 0],
        scan_input_directions=[backwards, 0],
        scan_output_axes=[2],
        scan_output_directions=[1 - backwards],
    )
    check(net.save(tmp_path / "m.onnx", last, f"{last}_1"), 2, 5, 3)


def test_what_depends_on_the_inputs_values_is_refused_by_its_name(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 3)
    branch = body([helper.make_node("Relu", [x], ["y"])], [], ["y"])
    positive = net.op("Greater", net.op("ReduceSum", x, keepdims=0), net.scalar(0.0))
    path = net.save(tmp_path / "m.onnx", net.op("If", positive, then_branch=branch, else_branch=branch))
    with pytest.raises(
        BadInput, match=r"m.onnx: node '/if_2/If' \(If\): control flow that depends on the inputs' values"
    ):
        load_onnx(path)
