"""Steps in parts: whatever the split and the placement, what onnx computes; both devices have work at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm.ir import Var

from templates.workloads import anchor_of
from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net, assert_close, expected, random_inputs
from tests.tuner.graph.test_lower import networks
from tests.tuner.graph.test_placed import placed, run
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, Placed, PlacedOperator, tasks_of
from tuner.graph.fusion.split import Share, Split, channels_of, rows_of, split_steps, unit_of
from tuner.graph.fusion.steps import PlainStep

GPU, CPU = 0, 1


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device(f"opencl:{device_number('pocl')}"), open_device("cpu", 1)]


def shares(*parts: tuple[int, int], rows: bool = False) -> list[Share]:
    """Of (channels, device), or of (rows, device)."""
    ends = np.cumsum([size for size, _ in parts]).tolist()
    return [Share(end - size, end, device, rows) for end, (size, device) in zip(ends, parts, strict=True)]


def of_anchor(graph: FusedGraph, at: int, *parts: tuple[int, int], rows: bool = False) -> Mapping[Var, Sequence[Share]]:
    return {graph.anchors[at].out: shares(*parts, rows=rows)}


def assert_split(net: Net, devices: list[Device], graph: FusedGraph, split: Split, *outputs: str) -> Placed:
    whole = placed(split.graph, devices, split.placement)
    inputs = random_inputs(graph)
    assert_close(run(split.graph, devices, whole, inputs), expected(net.model(*outputs), inputs))
    return whole


def calls(whole: Placed) -> list[str]:
    """The functions that the network calls, in order; a copy as "copy to" and the device's index."""
    found = []
    for binding in (b for block in whole.module["main"].body.blocks for b in block.bindings):
        value = binding.value
        if not isinstance(value, tvm.ir.Call) or not str(value.op.name).startswith("relax.call"):
            continue
        name = value.args[0]
        copied = "CopyFromTo" in str(name)
        found.append(f"copy to {binding.var.ty.vdevice.vdevice_id}" if copied else str(name.name_hint))
    return found


def node_of(placed: PlacedOperator) -> str:
    """A part's channels, "[48:64]", or rows, "[rows 0:3]", or the name of a whole step's node."""
    step = placed.operator.step
    return step.node[step.node.index("[") :] if "[" in step.node else step.node


def function_of(whole: Placed, node: str) -> str:
    (operator,) = [o for o in whole.operators if isinstance(o, PlacedOperator) and node_of(o) == node]
    assert operator.operator.function is not None
    return operator.operator.function


def chain() -> tuple[Net, str]:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 16, 6, 7), (16, 32), pads=[1, 1, 1, 1]))
    x = net.op("Relu", net.conv(x, (32, 64), pads=[1, 1, 1, 1]))
    return net, net.conv(x, (64, 16), 1)


def test_both_devices_have_work_at_the_same_time(tmp_path: Path, devices: list[Device]) -> None:
    """The GPU is waited for by every copy from it or to it: none may be between the launch of its part and the CPU's
    part."""
    net, output = chain()
    graph = net.graph(tmp_path, output)
    split = split_steps(graph, [GPU] * 3, of_anchor(graph, 1, (48, GPU), (16, CPU)), CPU)
    assert split.placement == (GPU, GPU, CPU, GPU, GPU)
    whole = assert_split(net, devices, graph, split, output)
    order = calls(whole)
    before, mine, theirs = (
        order.index(function_of(whole, node)) for node in (graph.anchors[0].node, "[0:48]", "[48:64]")
    )
    assert before < order.index("copy to 1") < mine < theirs < order.index("copy to 0")
    assert [name for name in order[mine:theirs] if "copy" in name] == []
    assert sum("copy" in name for name in order) == 2


def test_a_gpus_part_is_copied_behind_the_cpus(tmp_path: Path, devices: list[Device]) -> None:
    """The concatenation is the CPU's, which writes its own part in place."""
    net, output = chain()
    graph = net.graph(tmp_path, output)
    split = split_steps(graph, [CPU] * 3, of_anchor(graph, 1, (32, CPU), (32, GPU)), CPU)
    assert split.placement == (CPU, GPU, CPU, CPU, CPU)
    whole = assert_split(net, devices, graph, split, output)
    order = calls(whole)
    before, mine, theirs = (
        order.index(function_of(whole, node)) for node in (graph.anchors[0].node, "[32:64]", "[0:32]")
    )
    assert before < order.index("copy to 0") < mine < theirs < order.index("copy to 1")
    assert not any("concat" in name for name in order)


def test_slices_of_a_residual_leave_before_the_gpu_works(tmp_path: Path, devices: list[Device]) -> None:
    net = Net()
    x = net.conv(net.input(1, 8, 6, 7), (8, 32), 1)
    y = net.op("Add", net.conv(x, (32, 32), pads=[1, 1, 1, 1]), x)
    graph = net.graph(tmp_path, y)
    split = split_steps(graph, [GPU] * 2, of_anchor(graph, 1, (16, GPU), (16, CPU)), CPU)
    assert sum(isinstance(step, PlainStep) for step in split.graph.steps) == 2 + 1
    whole = assert_split(net, devices, graph, split, y)
    order = calls(whole)
    mine, theirs = (order.index(function_of(whole, node)) for node in ("[0:16]", "[16:32]"))
    assert [name for name in order[:mine] if "copy" in name] == ["copy to 1"] * 2
    assert [name for name in order[mine:theirs] if "copy" in name] == []


def test_an_input_that_both_read_starts_at_the_host(tmp_path: Path, devices: list[Device]) -> None:
    net = Net()
    output = net.conv(net.input(1, 16, 6, 7), (16, 32), 1)
    graph = net.graph(tmp_path, output)
    split = split_steps(graph, [GPU], of_anchor(graph, 0, (16, GPU), (16, CPU)), CPU)
    whole = assert_split(net, devices, graph, split, output)
    assert whole.inputs == (CPU,)
    assert [name for name in calls(whole) if "copy" in name] == ["copy to 0"] * 2


@pytest.mark.parametrize(("per_group", "out", "groups"), [(1, 16, 16), (1, 32, 16), (4, 24, 4)])
def test_groups_stay_together(tmp_path: Path, devices: list[Device], per_group: int, out: int, groups: int) -> None:
    net = Net()
    x = net.conv(net.input(1, 3, 6, 7), (3, per_group * groups), 1)
    y = net.op("Relu", net.conv(x, (per_group, out), group=groups, pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, y)
    unit = out // groups
    split = split_steps(graph, [GPU] * 2, of_anchor(graph, 1, (unit, CPU), (2 * unit, GPU), (out - 3 * unit, CPU)), CPU)
    assert [anchor_of(s.workload).weight_shape for s in split.graph.anchors[1:]] == [
        (size, per_group, 3, 3) for size in (2 * unit, unit, out - 3 * unit)
    ]
    assert_split(net, devices, graph, split, y)
    if unit > 1:
        with pytest.raises(BadInput, match=f"channel 1 is inside a group of {unit}: parts begin and end between"):
            split_steps(graph, [GPU] * 2, of_anchor(graph, 1, (1, CPU), (out - 1, GPU)), CPU)


def test_a_dense_layer_on_sequences_with_a_constant_added(tmp_path: Path, devices: list[Device]) -> None:
    net = Net()
    x = net.op("MatMul", net.input(2, 5, 12), net.weight(12, 20))
    y = net.op("Relu", net.op("Add", x, net.weight(2, 5, 20)))
    graph = net.graph(tmp_path, y)
    assert graph.anchors[0].extras
    split = split_steps(graph, [GPU], of_anchor(graph, 0, (7, GPU), (13, CPU)), CPU)
    assert_split(net, devices, graph, split, y)


def test_neighbouring_parts_of_one_device_are_one(tmp_path: Path) -> None:
    net, output = chain()
    graph = net.graph(tmp_path, output)
    four = of_anchor(graph, 1, (16, GPU), (16, GPU), (16, GPU), (16, CPU))
    split = split_steps(graph, [GPU] * 3, four, CPU)
    assert [channels_of(s) for s in split.graph.anchors] == [32, 48, 16, 16]
    assert [channels_of(split.whole[s.out]) for s in split.graph.anchors[1:3]] == [64, 64]
    assert len(tasks_of(split.graph)) == 4  # ordinary workloads
    one = split_steps(graph, [GPU] * 3, of_anchor(graph, 1, (16, CPU), (48, CPU)), CPU)
    assert (one.graph.steps, one.placement) == (graph.steps, (GPU, CPU, GPU))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([(16, GPU), (16, CPU)], "its parts must have each of its 64 output channels once, in order"),
        ([(64, GPU), (0, CPU)], "a part without output channels: split it into fewer parts"),
    ],
)
def test_parts_that_do_not_make_a_whole(tmp_path: Path, parts: list[tuple[int, int]], says: str) -> None:
    net, output = chain()
    graph = net.graph(tmp_path, output)
    with pytest.raises(BadInput, match=says) as caught:
        split_steps(graph, [GPU] * 3, of_anchor(graph, 1, *parts), CPU)
    assert graph.anchors[1].node in str(caught.value)


def test_only_anchors_are_split(tmp_path: Path) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.op("Softmax", net.input(1, 8)))
    with pytest.raises(BadInput, match="is not a convolution or a dense layer: only these can be split"):
        split_steps(graph, [GPU], {graph.steps[0].out: shares((4, GPU), (4, CPU))}, CPU)


def test_rows_of_a_chain_stay_where_they_are(tmp_path: Path, devices: list[Device]) -> None:
    """Of what the other device made, a part is given the rows at the border alone; nobody reads the first result
    whole, so it is never put together."""
    net, output = chain()
    graph = net.graph(tmp_path, output)
    halves = [of_anchor(graph, at, (4, GPU), (2, CPU), rows=True) for at in (0, 1)]
    split = split_steps(graph, [GPU] * 3, halves[0] | halves[1], CPU)
    heights = [s.workload.attrs["height"] for s in split.graph.anchors]
    padding = [s.workload.attrs["padding"] for s in split.graph.anchors]
    assert heights == [5, 3, 5, 3, 6]
    assert padding[:4] == [(1, 1, 0, 1), (0, 1, 1, 1)] * 2
    assert graph.steps[0].out not in {step.out for step in split.graph.steps}
    whole = assert_split(net, devices, graph, split, output)
    copies = [
        (b.var.ty.vdevice.vdevice_id, tuple(int(n) for n in b.var.ty.shape))
        for block in whole.module["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, tvm.ir.Call) and b.value.args and "CopyFromTo" in str(b.value.args[0])
    ]
    rows = [(device, shape[2]) for device, shape in copies]
    assert rows == [(GPU, 5), (CPU, 1), (GPU, 1), (GPU, 2)]  # the input's, both halos, and at last the CPU's part
    order = calls(whole)
    functions = {o.operator.step.node: o.operator.function for o in whole.operators if isinstance(o, PlacedOperator)}
    mine, theirs = (order.index(str(functions[step.node])) for step in split.graph.anchors[2:4])
    assert mine < theirs
    assert [name for name in order[mine:theirs] if "copy" in name] == []


def test_blocked_rows_are_cut_and_joined_as_they_lie(tmp_path: Path, devices: list[Device]) -> None:
    """On one device and the other: no part is made plain to be put together."""
    net, output = chain()
    graph = net.graph(tmp_path, output)
    split = split_steps(graph, [CPU] * 3, of_anchor(graph, 1, (3, CPU), (3, GPU), rows=True), CPU)
    whole = placed(split.graph, [devices[CPU], devices[CPU]], split.placement)
    assert sum("to_" in name for name in calls(whole)) == 2  # the network's own input and output


def test_rows_of_a_residual_and_of_constants(tmp_path: Path, devices: list[Device]) -> None:
    net = Net()
    x = net.conv(net.input(1, 8, 7, 5), (8, 16), 1)
    y = net.op("Add", net.conv(x, (16, 16), pads=[1, 1, 1, 1]), x)
    y = net.op("Add", net.conv(y, (16, 16), 1), net.weight(1, 16, 7, 5))
    graph = net.graph(tmp_path, y)
    assert [len(s.extras) for s in graph.anchors] == [0, 1, 1]
    thirds = [of_anchor(graph, at, (2, GPU), (2, CPU), (3, GPU), rows=True) for at in range(3)]
    split = split_steps(graph, [GPU] * 3, thirds[0] | thirds[1] | thirds[2], CPU)
    assert_split(net, devices, graph, split, y)


def test_rows_that_come_in_other_parts(tmp_path: Path, devices: list[Device]) -> None:
    """Strided, so that parts of parts are read, by channels and by rows, and of a value that is also a result."""
    net = Net()
    x = net.conv(net.input(2, 8, 12, 5), (8, 16), pads=[1, 1, 1, 1])
    y = net.conv(x, (16, 8), pads=[1, 1, 1, 1], strides=[2, 1])
    z = net.conv(x, (16, 32), 1)
    graph = net.graph(tmp_path, x, y, z)
    said = {
        **of_anchor(graph, 0, (5, CPU), (4, GPU), (3, CPU), rows=True),
        **of_anchor(graph, 1, (1, GPU), (4, CPU), (1, GPU), rows=True),
        **of_anchor(graph, 2, (16, GPU), (16, CPU)),
    }
    assert_split(net, devices, graph, split_steps(graph, [GPU] * 3, said, CPU), x, y, z)


@pytest.mark.parametrize(
    ("pads", "parts", "says"),
    [
        ([1, 1, 1, 1], shares((3, GPU), (2, CPU), rows=True), "must have each of its 6 output rows once, in order"),
        ([1, 1, 1, 1], shares((6, GPU), (0, CPU), rows=True), "a part without output rows: split it into fewer parts"),
        ([1, 1, 1, 1], [Share(0, 3, GPU), Share(3, 6, CPU, rows=True)], "along channels or along rows, not both"),
        ([3, 1, 1, 1], shares((4, GPU), (4, CPU), rows=True), "no convolution of several that each read data"),
        ([1, 1, 3, 1], shares((4, GPU), (4, CPU), rows=True), "no convolution of several that each read data"),
    ],
)
def test_rows_that_do_not_make_a_whole(tmp_path: Path, pads: list[int], parts: list[Share], says: str) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.conv(net.input(1, 8, 6, 7), (8, 16), pads=pads))
    with pytest.raises(BadInput, match=says) as caught:
        split_steps(graph, [GPU], {graph.anchors[0].out: parts}, CPU)
    assert graph.anchors[0].node in str(caught.value)


def test_a_dense_layer_has_no_rows_to_share_out(tmp_path: Path) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.op("MatMul", net.input(8, 12), net.weight(12, 20)))
    with pytest.raises(BadInput, match="no convolution of several that each read data"):
        split_steps(graph, [GPU], of_anchor(graph, 0, (4, GPU), (4, CPU), rows=True), CPU)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Net, str]:
    """Any kernel, stride, dilation, padding and groups, with or without what is added."""
    net = Net(seed=draw(st.integers(0, 99)))
    groups, width = draw(st.sampled_from([(1, 3), (1, 16), (4, 2), (16, 1)]))
    size = st.integers(1, 3)
    kernel, strides, dilations = ((draw(size), draw(size)) for _ in range(3))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [draw(st.integers(0, reach[i % 2] - 1)) for i in range(4)]
    low = [max(reach[i] - pads[i] - pads[i + 2], 1) for i in range(2)]
    height, columns = (draw(st.integers(least, least + 8)) for least in low)
    x = net.op("Relu", net.input(draw(st.integers(1, 2)), groups * width, height, columns))
    options = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    channels = width, groups * draw(st.sampled_from([1, 4]))
    y = net.conv(x, channels, kernel, **options)
    if draw(st.booleans()):
        y = net.op("Add", y, net.op("Tanh", net.conv(x, channels, kernel, **options)))
    return net, net.op("Relu", y)


@pytest.mark.sampled(2)
@given(convolutions(), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_convolution_by_rows(
    tmp_path: Path, devices: list[Device], network: tuple[Net, str], data: st.DataObject
) -> None:
    """All on the CPU, which is both devices."""
    net, output = network
    graph = net.graph(tmp_path, output)
    said = {step.out: drawn_shares(data, rows_of(step), 1, rows=True) for step in graph.anchors if rows_of(step) > 1}
    split = split_steps(graph, [data.draw(st.sampled_from([GPU, CPU])) for _ in graph.steps], said, CPU)
    for whole in said:
        parts = [
            s for s in split.graph.anchors if split.whole.get(s.out) is not None and split.whole[s.out].out == whole
        ]
        assert not parts or sum(int(s.out.ty.shape[2]) for s in parts) == int(whole.ty.shape[2])
    assert_split(net, [devices[CPU]] * 2, graph, split, output)


def drawn_shares(data: st.DataObject, size: int, unit: int, rows: bool) -> list[Share]:
    """Of channels or rows that only go together in units."""
    borders = data.draw(st.sets(st.integers(1, size // unit - 1), max_size=3))
    ends = [0, *(unit * border for border in sorted(borders)), size]
    return [Share(a, b, data.draw(st.sampled_from([GPU, CPU])), rows) for a, b in pairwise(ends)]


@pytest.mark.sampled(2)
@given(networks(), st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_network_any_split_any_placement(
    tmp_path: Path, devices: list[Device], network: tuple[Net, list[str]], data: st.DataObject
) -> None:
    net, outputs = network
    graph = net.graph(tmp_path, *outputs)
    said = {}
    for step in graph.anchors:
        rows = rows_of(step) > 1 and data.draw(st.booleans())
        size, unit = (rows_of(step), 1) if rows else (channels_of(step), unit_of(step))
        said[step.out] = drawn_shares(data, size, unit, rows)
    placement = [data.draw(st.sampled_from([GPU, CPU])) for _ in graph.steps]
    split = split_steps(graph, placement, said, CPU)
    assert_split(net, devices, graph, split, *outputs)
