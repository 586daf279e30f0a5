"""Networks on several devices: whatever the placement, what onnx computes; values and weights are where they belong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.ir import Var

from templates.template import search_space
from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net, assert_close, expected, random_inputs
from tests.tuner.graph.test_lower import networks
from tests.tuner.graph.test_onnx_vision import detector
from tuner.devices import Device, open_device
from tuner.graph import AnchorStep, DevicePlan, FusedGraph, Placed, compile_module, host_of, lower_placed
from tuning_db.record import Config


@pytest.fixture(scope="module")
def cpu() -> Device:
    return open_device("cpu", 1)


@pytest.fixture(scope="module")
def gpu() -> Device:
    return open_device(f"opencl:{device_number('pocl')}")


@pytest.fixture(scope="module")
def other() -> Device:
    return open_device(f"opencl:{device_number('intel')}")


def placed(
    graph: FusedGraph,
    devices: Sequence[Device],
    placement: Sequence[int],
    blocks: Sequence[int | None] = (),
    kernels: int | None = None,
) -> Placed:
    """`kernels`: the seed that every step's own kernel is drawn with, from the seeds of all templates."""
    wanted = {s.out: b for s, b in zip(graph.steps, blocks, strict=False) if b is not None}
    device_plans = [
        DevicePlan(d.target, {}, {} if kernels is None else drawn(graph, d, random.Random(kernels))) for d in devices
    ]
    return lower_placed(graph, device_plans, placement, wanted)


def drawn(graph: FusedGraph, device: Device, rng: random.Random) -> dict[Var, Config | None]:
    spaces = {step.out: search_space(step.workload, device.target) for step in graph.tuned}
    return {out: None if space is None else rng.choice(space.seed_configs()) for out, space in spaces.items()}


def calls(whole: Placed, name: str) -> int:
    """How often the function calls what has `name` in its name."""
    values = [b.value for block in whole.module["main"].body.blocks for b in block.bindings]
    return sum(name in str(value.args[0]) for value in values if isinstance(value, tvm.ir.Call))


def run(graph: FusedGraph, devices: Sequence[Device], whole: Placed, inputs: dict) -> dict[str, np.ndarray]:
    executable = compile_module(whole.module, host_of([device.target for device in devices]), len(devices))
    tvm_devices = [device.tvm_device() for device in devices]
    machine = relax.VirtualMachine(executable, list(tvm_devices))
    given = [
        tvm.runtime.tensor(inputs[t.name], tvm_devices[i])
        for t, i in zip(graph.model.inputs, whole.inputs, strict=True)
    ]
    constants = [
        tvm.runtime.tensor(array, tvm_devices[i]) for i, arrays in enumerate(whole.constants) for array in arrays
    ]
    results = [r.numpy() for r in machine["main"](*given, *constants)]
    return {t.name: t.entries(i, results) for i, t in enumerate(graph.model.outputs)}


def assert_placed(
    net: Net,
    folder: Path,
    devices: Sequence[Device],
    place: Callable[[int], int],
    *outputs: str,
    blocks: Sequence[int | None] = (),
    kernels: int | None = None,
) -> Placed:
    graph = net.graph(folder, *outputs)
    whole = placed(graph, devices, [place(i) for i in range(len(graph.steps))], blocks, kernels)
    inputs = random_inputs(graph)
    assert_close(run(graph, devices, whole, inputs), expected(net.model(*outputs), inputs))
    return whole


def branches() -> tuple[Net, str]:
    """A residual and a concatenation, each with parts that may be made on different devices."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 9, 10), (3, 16), pads=[1, 1, 1, 1]))
    x = net.op("Add", net.conv(x, (16, 16), pads=[1, 1, 1, 1]), x)
    x = net.op("Concat", net.conv(x, (16, 16), 1), net.op("Tanh", x), net.conv(x, (16, 8), 1), axis=1)
    x = net.op("Flatten", net.op("GlobalAveragePool", net.op("MaxPool", x, kernel_shape=[2, 2])))
    return net, net.op("Gemm", x, net.weight(7, 40), net.weight(7), transB=1)


PLACEMENTS: dict[str, Callable[[int], int]] = {
    "first half here": lambda i: int(i >= 4),
    "second half here": lambda i: int(i < 4),
    "in turns": lambda i: i % 2,
    "all on the second": lambda _: 1,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("host_first", [True, False])
def test_any_half_may_be_elsewhere(tmp_path: Path, cpu: Device, gpu: Device, name: str, host_first: bool) -> None:
    net, output = branches()
    assert_placed(net, tmp_path, [cpu, gpu] if host_first else [gpu, cpu], PLACEMENTS[name], output)


def test_two_gpus_copy_through_the_host(tmp_path: Path, gpu: Device, other: Device) -> None:
    net, output = branches()
    whole = assert_placed(net, tmp_path, [gpu, other], PLACEMENTS["first half here"], output)
    assert calls(whole, "CopyFromTo") % 2 == 0


def test_three_devices(tmp_path: Path, cpu: Device, gpu: Device, other: Device) -> None:
    net, output = branches()
    assert_placed(net, tmp_path, [gpu, cpu, other], lambda i: i % 3, output)


def test_weights_are_parameters(tmp_path: Path, cpu: Device, gpu: Device) -> None:
    net, output = branches()
    graph = net.graph(tmp_path, output)
    last = len(graph.steps) - 1
    for device in (0, 1):
        whole = placed(graph, [cpu, gpu], [device if i == last else 1 - device for i in range(len(graph.steps))])
        weights = [step.weight.size for step in graph.steps if isinstance(step, AnchorStep)]
        for i, there in ((device, weights[-1:]), (1 - device, weights[:-1])):
            assert sum(array.size for array in whole.constants[i]) >= sum(there)
        assert len(whole.module["main"].params) == 1 + sum(map(len, whole.constants))
        assert [operator.device for operator in whole.operators][-1] == device


def test_a_first_device_that_is_not_the_host_keeps_its_weights(tmp_path: Path, cpu: Device, gpu: Device) -> None:
    net, output = branches()
    graph = net.graph(tmp_path, output)
    whole = placed(graph, [gpu, cpu], [i % 2 for i in range(len(graph.steps))])
    assert not whole.constants[0]
    assert whole.constants[1]


def test_a_weight_used_twice_is_placed_once(tmp_path: Path, cpu: Device, gpu: Device) -> None:
    net = Net()
    x = net.input(1, 16, 6, 6)
    for _ in range(3):
        x = net.op("Relu", net.conv(x, (16, 16), bias=False, pads=[1, 1, 1, 1]))
        net.nodes[-2].input[1] = net.nodes[0].input[1]
        x = net.op("Transpose", x, perm=[0, 1, 3, 2])
    graph = net.graph(tmp_path, x)
    whole = placed(graph, [cpu, gpu], [int(isinstance(step, AnchorStep)) for step in graph.steps])
    assert len(whole.constants[1]) == 1
    inputs = random_inputs(graph)
    assert_close(run(graph, [cpu, gpu], whole, inputs), expected(net.model(x), inputs))


def test_a_value_is_copied_once_however_many_read_it(tmp_path: Path, cpu: Device, gpu: Device) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 9, 10), (3, 16), 1))
    outputs = [net.conv(x, (16, 8), 1), net.conv(x, (16, 16), 3), net.op("Tanh", x)]
    whole = assert_placed(net, tmp_path, [cpu, gpu], lambda i: int(i > 0), *outputs)
    assert calls(whole, "CopyFromTo") == 1


def test_several_results_of_one_operator_cross(tmp_path: Path, cpu: Device, gpu: Device) -> None:
    net = Net()
    first = net.op("TopK", net.input(3, 200), net.constant(np.array([10])), outputs=2)
    assert_placed(net, tmp_path, [cpu, gpu], lambda i: int(i > 0), net.op("Abs", first))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_vision_operators_may_be_anywhere(tmp_path: Path, cpu: Device, gpu: Device, other: Device, name: str) -> None:
    """Sorting, suppression and what collects its results, on one device, another, or several."""
    for devices in ([cpu, gpu], [gpu, cpu], [gpu, other]):
        net = Net()
        outputs = detector(net, 60, 3, 8, 0.5)
        whole = assert_placed(net, tmp_path, devices, PLACEMENTS[name], *outputs)
        steps = {o.operator.step.workload.op: o.device for o in whole.operators}
        assert steps.keys() == {"argsort", "nms", "compact"}
        assert name != "in turns" or set(steps.values()) == {0, 1}


def test_results_that_are_inputs_or_constants(tmp_path: Path, cpu: Device, gpu: Device) -> None:
    net = Net()
    x, y = net.input(1, 4, 5, 6), net.input(1, 4, 5, 6, name="y")
    conv = net.conv(y, (4, 20))
    outputs = [x, conv, net.op("Relu", net.conv(conv, (20, 4), 1)), net.op("Identity", net.weight(3))]
    whole = assert_placed(net, tmp_path, [cpu, gpu], lambda i: int(i == 0), *outputs)
    assert whole.inputs == (0, 1)  # each where it is read first


@pytest.mark.sampled(2)
@pytest.mark.slow
@given(
    networks(),
    st.integers(0, 2**10 - 1),
    st.booleans(),
    st.lists(st.sampled_from((None, 0, 4, 8, 16)), min_size=20, max_size=20),
    st.one_of(st.none(), st.integers(0, 2**16)),
)
@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_network_any_placement_any_layout_any_kernels(
    tmp_path: Path,
    cpu: Device,
    gpu: Device,
    network: tuple[Net, list[str]],
    bits: int,
    host_first: bool,
    blocks: list[int | None],
    kernels: int | None,
) -> None:
    net, outputs = network
    devices = [cpu, gpu] if host_first else [gpu, cpu]
    assert_placed(net, tmp_path, devices, lambda i: bits >> (i % 10) & 1, *outputs, blocks=blocks, kernels=kernels)


@pytest.mark.parametrize("block", [0, 8])
def test_an_operator_is_computed_in_the_layout_that_it_is_told(tmp_path: Path, cpu: Device, block: int) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 16, 12, 12), (16, 16), 1))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    graph = net.graph(tmp_path, x)
    (pool,) = [i for i, step in enumerate(graph.steps) if not isinstance(step, AnchorStep)]
    blocks = [block if i == pool else None for i in range(len(graph.steps))]
    whole = assert_placed(net, tmp_path, [cpu], lambda _: 0, x, blocks=blocks)
    shapes = [
        [int(s) for s in b.var.ty.shape]
        for part in whole.module["main"].body.blocks
        for b in part.bindings
        if isinstance(b.var.ty, relax.TensorType)
    ]
    assert [1, 16, 6, 6] in shapes
    assert ([1, 2, 6, 6, 8] in shapes) == (block == 8)
