"""Steps by themselves: the layouts that they want and make, on the host and on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm.target import Target

from templates.template import PLAIN, Layout
from tests.tuner.graph.networks import Net
from tuner.devices import open_device
from tuner.graph import AnchorStep, DevicePlan, lower_alone


@pytest.fixture(scope="module")
def device_plan() -> DevicePlan:
    return DevicePlan(Target({"kind": "llvm", "mcpu": "x86-64-v3"}), {})


def test_anchors_say_their_template_s_layouts(tmp_path: Path, device_plan: DevicePlan) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 8, 8), (3, 16), pads=[1, 1, 1, 1]))
    y = net.op("Add", net.conv(x, (16, 16), 1), x)
    first, second = net.graph(tmp_path, y).steps
    alone = lower_alone(net.graph(tmp_path, y), first, device_plan)
    assert list(alone.reads.values()) == [PLAIN]
    assert alone.makes == Layout(8)
    alone = lower_alone(net.graph(tmp_path, y), second, device_plan)
    assert set(alone.reads.values()) == {Layout(8)}
    assert isinstance(second, AnchorStep)


@pytest.mark.parametrize("block", [0, 4, 8, 16])
def test_other_operators_take_any_block(tmp_path: Path, device_plan: DevicePlan, block: int) -> None:
    net = Net()
    x = net.op("MaxPool", net.input(1, 12, 8, 8), kernel_shape=[2, 2], strides=[2, 2])
    graph = net.graph(tmp_path, x)
    (step,) = graph.steps
    alone = lower_alone(graph, step, device_plan, block)
    assert list(alone.reads.values()) == [Layout(block)]
    assert alone.makes == Layout(block)
    (parameter,) = alone.module["main"].params
    assert tuple(int(s) for s in parameter.ty.shape) == Layout(block).shape((1, 12, 8, 8))
    assert not any("blocked" in name.name_hint for name in alone.module.functions)  # nothing is converted


def test_what_has_to_be_plain_stays_plain(tmp_path: Path, device_plan: DevicePlan) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.op("Softmax", net.input(1, 16, 4, 4), axis=1))
    (step,) = graph.steps
    alone = lower_alone(graph, step, device_plan, 8)
    assert (list(alone.reads.values()), alone.makes) == ([PLAIN], PLAIN)


def test_on_a_gpu(tmp_path: Path) -> None:
    device_plan = DevicePlan(open_device("opencl:0").target, {})
    net = Net()
    graph = net.graph(tmp_path, net.op("GlobalAveragePool", net.op("Tanh", net.input(1, 16, 4, 4))))
    for step in graph.steps:
        alone = lower_alone(graph, step, device_plan, 4)
        assert (list(alone.reads.values()), alone.makes) == ([Layout(4)], Layout(4))
