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
from tuner.graph.fuse import PlainStep
from tuner.graph.split import Share, Split, channels_of, split_steps, unit_of

GPU, CPU = 0, 1


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device(f"opencl:{device_number('pocl')}"), open_device("cpu", 1)]


def shares(*parts: tuple[int, int]) -> list[Share]:
    """Of (channels, device)."""
    ends = np.cumsum([channels for channels, _ in parts]).tolist()
    return [Share(end - channels, end, device) for end, (channels, device) in zip(ends, parts, strict=True)]


def of_anchor(graph: FusedGraph, at: int, *parts: tuple[int, int]) -> Mapping[Var, Sequence[Share]]:
    return {graph.anchors[at].out: shares(*parts)}


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
    """A part's channels, "[48:64]", or the name of a whole step's node."""
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


@given(networks(), st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_network_any_split_any_placement(
    tmp_path: Path, devices: list[Device], network: tuple[Net, list[str]], data: st.DataObject
) -> None:
    net, outputs = network
    graph = net.graph(tmp_path, *outputs)
    device = st.sampled_from([GPU, CPU])
    said = {}
    for step in graph.anchors:
        unit = unit_of(step)
        borders = data.draw(st.sets(st.integers(1, channels_of(step) // unit - 1), max_size=3))
        ends = [0, *(unit * border for border in sorted(borders)), channels_of(step)]
        said[step.out] = [Share(a, b, data.draw(device)) for a, b in pairwise(ends)]
    placement = [data.draw(device) for _ in graph.steps]
    split = split_steps(graph, placement, said, CPU)
    assert_split(net, devices, graph, split, *outputs)
