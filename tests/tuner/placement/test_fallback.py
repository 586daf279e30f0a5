"""CPU fallback: what a GPU can compute stays there, and the whole is what onnx computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.templates.gpu.support import GPUS, driver, gpu
from tests.tuner.graph.networks import Net, assert_close, expected, random_inputs
from tests.tuner.graph.test_gpu import residual_network
from tests.tuner.graph.test_onnx_vision import detector
from tests.tuner.graph.test_placed import placed, run
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import COPY, FusedGraph
from tuner.placement.fallback import CPU, GPU, fall_back, operator_of, present


def on_cpu(graph: FusedGraph, placement: list[int]) -> set[str]:
    return {operator_of(step) for step, device in zip(graph.steps, placement, strict=True) if device == CPU}


@pytest.mark.parametrize("name", ["mali", "intel", "orin", "no_local_memory"])
def test_a_network_that_a_gpu_can_run_stays_there(tmp_path: Path, name: str) -> None:
    net, output = residual_network(16)
    graph = net.graph(tmp_path, output)
    assert fall_back(graph, gpu(name)) == [GPU] * len(graph.steps)


def test_what_a_gpu_cannot_compute_falls_back(tmp_path: Path) -> None:
    """Suppression needs local memory, which some GPUs lack."""
    net = Net()
    outputs = detector(net, 60, 3, 8, 0.5)
    graph = net.graph(tmp_path, *outputs)
    here = driver("pocl")
    lacking = replace(open_device(f"opencl:{here.info.index}"), target=here.target(GPUS["no_local_memory"]))
    with pytest.raises(BadInput, match="no template computes nms on this opencl device; name the CPU behind"):
        placed(graph, [lacking], [GPU] * len(graph.steps))
    devices = [lacking, open_device("cpu", 1)]
    placement = fall_back(graph, lacking.target)
    assert on_cpu(graph, placement) == {"nms"}
    whole, inputs = placed(graph, devices, placement), random_inputs(graph)
    assert COPY in str(whole.module["main"])
    assert_close(run(graph, devices, whole, inputs), expected(net.model(*outputs), inputs))


def test_operators_may_be_sent_away(tmp_path: Path) -> None:
    net = Net()
    graph = net.graph(tmp_path, *detector(net, 40, 3, 8, 0.5))
    placement = fall_back(graph, gpu("mali"), ["nms", "argsort"])
    assert on_cpu(graph, placement) == {"nms", "argsort"}


def test_a_part_of_a_network_may_lack_what_is_to_fall_back(tmp_path: Path) -> None:
    """So the parts that are built to find the first wrong operator are placed as the whole is."""
    net, output = residual_network(5)
    graph = net.graph(tmp_path, output)
    assert present(graph, ["nms", "conv2d"]) == ["conv2d"]
    placement = fall_back(graph, gpu("mali"), present(graph, ["nms", "conv2d"]))
    assert on_cpu(graph, placement) == {"conv2d"}


def test_operators_that_are_not_there(tmp_path: Path) -> None:
    net, output = residual_network(5)
    with pytest.raises(BadInput, match=r"no operator 'nms' to fall back: the network has conv2d, dense"):
        fall_back(net.graph(tmp_path, output), gpu("mali"), ["conv2d", "nms"])
