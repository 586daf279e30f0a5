"""Modules in stages: saved with their schedule, right in a fresh process and whatever breaks, calls told apart."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net
from tests.tuner.stages.networks import all_merged, host, with_threads
from tuner.devices import Device, open_device
from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, Module, OnnxReference, build, build_placed, load, verify
from tuner.module.manifest import OperatorEntry
from tuner.module.verification import operator_errors
from tuner.report.page.flow import flow_of
from tuner.stages import Stage, greedy
from tuner.stages.calls import Calls
from tuner.stages.merge import Merging
from tuner.stages.rewrite import staged
from tuning_db.record import tolerance_of

THREADS = 4


@pytest.fixture(scope="module", params=["pocl", "intel", "cpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return host(THREADS) if request.param == "cpu" else open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Branches with the same convolution in them: calls of one function that greedy stages put in another order."""
    net = Net()
    x = net.op("Relu", net.input(1, 16, 12, 12, name="data"))
    ends = []
    for length in (3, 1, 2):
        y = x
        for _ in range(length):
            y = net.op("Relu", net.conv(y, (16, 16), 3, pads=[1] * 4))
        ends.append(y)
    path = tmp_path_factory.mktemp("model") / "branches.onnx"
    return net.save(path, net.op("Flatten", net.op("Concat", *ends, axis=1)))


@pytest.fixture(scope="module")
def graph(model: Path) -> FusedGraph:
    return fuse(load_onnx(model))


@pytest.fixture(scope="module")
def built(graph: FusedGraph, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In greedy stages."""

    def arrange(placed):
        calls = Calls.of(placed)
        schedule = greedy(calls.graph())
        return staged(placed, calls, with_threads(schedule, THREADS) if device.is_host else schedule)

    directory = tmp_path_factory.mktemp("built") / "staged"
    build_placed(
        graph, [device], Planned([0] * len(graph.steps)), directory=directory, options=BuildOptions(arrange=arrange)
    )
    return directory


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    return {"data": np.random.default_rng(seed).standard_normal((1, 16, 12, 12)).astype(np.float32)}


def test_the_schedule_is_in_the_manifest(built: Path) -> None:
    stages = load(built).manifest.stages
    assert max(stage.count("|") for stage in stages) == 2
    numbers = [n for stage in stages for group in Stage.from_text(stage).groups for n in group]
    assert sorted(numbers) == list(range(len(numbers)))


def test_computes_what_the_sequential_module_computes(
    built: Path, graph: FusedGraph, device: Device, tmp_path: Path
) -> None:
    build(graph, device, tmp_path / "plain")
    together, alone = load(built), load(tmp_path / "plain")
    assert alone.manifest.stages == ()
    for seed in range(20):
        one, other = together(inputs(seed)), alone(inputs(seed))
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])


def test_every_operator_is_right_by_itself(built: Path, model: Path, graph: FusedGraph) -> None:
    """Which needs its calls to be told apart: they are in another order than the network's."""
    module = load(built)
    verify(module, OnnxReference(model), graph=graph)
    assert {c.operator.node for c in module.profile(inputs(), runs=2) if c.operator is not None} == {
        operator.node for operator in module.manifest.operators
    }


@pytest.mark.sampled(3)
def test_a_fresh_process_runs_it(built: Path) -> None:
    program = (
        "import sys, numpy, tuner.module as m; x = m.load(sys.argv[1]);"
        "print(sum(float(v.sum()) for v in x({'data': numpy.ones((1, 16, 12, 12), 'float32')}).values()))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(built)], capture_output=True, text=True, check=True)
    expected = load(built)({"data": np.ones((1, 16, 12, 12), np.float32)})
    assert float(done.stdout) == pytest.approx(sum(float(v.sum()) for v in expected.values()), rel=1e-5)


def test_an_error_in_a_stage_leaves_the_next_call_right(built: Path, device: Device) -> None:
    module: Module = load(built)
    before = module(inputs())
    seen: list[str] = []

    def broken(operator: OperatorEntry, _tensors: tuple) -> None:
        seen.append(operator.node)
        if len(seen) > 1:
            raise RuntimeError("broken on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        module.observe(inputs(), broken)
    if not device.is_host:
        assert int(tvm_ffi.get_raw_stream(device.tvm_device())) == 0
    for name, value in module(inputs()).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.fixture(scope="module")
def squeezed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1x1 and 3x3 of one input, joined as in SqueezeNet, and 1x1 twice, each for another reader."""
    net = Net()
    x = net.op("Relu", net.input(1, 16, 12, 12, name="data"))
    x = net.op("Concat", *(net.op("Relu", net.conv(x, (16, 16), k, pads=[k // 2] * 4)) for k in (1, 3)), axis=1)
    ends = [net.op("MaxPool", net.conv(x, (32, c), 1), kernel_shape=[s] * 2) for c, s in ((16, 2), (32, 3))]
    return net.save(tmp_path_factory.mktemp("model") / "squeezed.onnx", *ends)


@pytest.fixture(scope="module")
def merged(squeezed: Path, device: Device, tmp_path_factory: pytest.TempPathFactory) -> tuple[FusedGraph, Path]:
    """With all merged that may be."""
    graph = fuse(load_onnx(squeezed))

    def arrange(placed):
        calls = Calls.of(placed)
        merging = Merging(placed, calls, device)
        return staged(placed, calls, all_merged(merging), merging=merging)

    directory = tmp_path_factory.mktemp("built") / "merged"
    build_placed(
        graph, [device], Planned([0] * len(graph.steps)), directory=directory, options=BuildOptions(arrange=arrange)
    )
    return graph, directory


@pytest.mark.sampled(3)
def test_a_merged_module_computes_what_the_sequential_one_computes(
    merged: tuple[FusedGraph, Path], squeezed: Path, device: Device, tmp_path: Path
) -> None:
    graph, directory = merged
    build(graph, device, tmp_path / "plain")
    together, alone = load(directory), load(tmp_path / "plain")
    assert [stage[0] == "=" for stage in together.manifest.stages].count(True) == 2
    for seed in range(5):
        one, other = together(inputs(seed)), alone(inputs(seed))
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-5, atol=1e-5)
    verify(together, OnnxReference(squeezed), graph=graph)


def test_the_manifest_says_what_a_merged_kernel_computes(merged: tuple[FusedGraph, Path]) -> None:
    graph, directory = merged
    module = load(directory)
    joined, apart = module.manifest.operators
    assert [part.node for o in (joined, apart) for part in o.parts] == [step.node for step in graph.anchors]
    assert (joined.results, apart.results) == (1, 2)
    assert joined.parts[1].first_block > 0
    assert tuple(joined.workload.attrs["kernel"]) == (3, 3)
    assert joined.source == "default"
    profiled = [c.operator for c in module.profile(inputs(), runs=2) if c.operator is not None]
    assert profiled == [joined, apart]
    errors = operator_errors(module, graph, inputs())
    assert [e.operator for e in errors] == [joined, apart]
    assert max(e.error for e in errors) < tolerance_of(joined.workload.dtype)


def test_a_wrong_member_of_a_merged_kernel_is_found(merged: tuple[FusedGraph, Path]) -> None:
    graph, directory = merged
    *_, last = graph.anchors
    assert last.bias is not None
    wrong = replace(last, bias=last.bias + np.asarray(1, last.bias.dtype))
    steps = tuple(wrong if step is last else step for step in graph.steps)
    errors = operator_errors(load(directory), replace(graph, steps=steps), inputs())
    assert [e.error > 0.01 for e in errors] == [False, True]


def test_a_page_draws_a_merged_kernel(merged: tuple[FusedGraph, Path]) -> None:
    """Between what it reads and all that read one of its results."""
    _, directory = merged
    manifest = load(directory).manifest
    flow = flow_of(directory, manifest)
    names = [node["name"] for node in flow["nodes"]]
    joined, apart = (names.index(operator.node) for operator in manifest.operators)
    assert [joined, apart] in [list(edge) for edge in flow["edges"]]
    assert len([to for made, to in flow["edges"] if made == apart]) == 2
