"""Networks that multiply in bfloat16: which steps do, how weights are stored, and what the database has for them."""

from __future__ import annotations

import math
import random
from pathlib import Path

from tvm.target import Target

from templates.template import search_space, template_named
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_close, expected, lowered, random_inputs, run
from tuner.devices.cpu import cpu_elsewhere
from tuner.graph import FusedGraph, fuse, load_onnx, tasks_of, with_bfloats
from tuner.graph.ir.bindings import Bindings, dtype_of, operands, shape_of
from tuner.module import BuildOptions, build
from tuning_db import lookup
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import open_db

BOARD = cpu_elsewhere("orion-o6")


def network(folder: Path) -> tuple[Net, str, FusedGraph]:
    """A convolution, a depthwise one, one with small groups, and a dense layer."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 16, 12, 12), (16, 32), 3, pads=[1] * 4))
    x = net.conv(x, (1, 32), 3, pads=[1] * 4, group=32)
    x = net.op("Relu", net.conv(x, (2, 32), 3, pads=[1] * 4, group=16))
    out = net.op("Gemm", net.op("Flatten", net.op("GlobalAveragePool", x)), net.weight(32, 10))
    return net, out, fuse(load_onnx(net.save(folder / "net.onnx", out)))


def _dtypes(graph: FusedGraph) -> list[str]:
    return [step.workload.dtype for step in graph.anchors]


def test_what_has_a_template_on_every_device_is_multiplied_in_bfloat16(tmp_path: Path) -> None:
    _, _, graph = network(tmp_path)
    old = cpu_elsewhere("rpi5").target
    found = with_bfloats(graph, [BOARD.target])
    assert _dtypes(found) == ["bfloat16", "float32", "float32", "bfloat16"]
    assert (found.dtype, graph.dtype) == ("bfloat16", "float32")
    assert _dtypes(with_bfloats(graph, [BOARD.target, old])) == ["float32"] * 4
    assert _dtypes(graph) == ["float32"] * 4


def test_weights_are_stored_as_bfloat16(tmp_path: Path) -> None:
    _, _, graph = network(tmp_path)
    main = Bindings.of(lowered(with_bfloats(graph, [BOARD.target]), BOARD.target).module["main"])
    weights = {leaf for call in main.values for leaf in operands(call) if dtype_of(leaf) == "uint16"}
    assert {math.prod(shape_of(weight) or ()) for weight in weights} == {16 * 32 * 9, 32 * 12}  # 12: whole vectors


def test_without_templates_it_is_computed_in_float32(tmp_path: Path) -> None:
    net, out, graph = network(tmp_path)
    inputs = random_inputs(graph)
    narrow = with_bfloats(graph, [BOARD.target])
    host: Target = host_target()
    results = run(narrow, host, inputs, {step.workload: None for step in narrow.anchors})
    assert_close(results, expected(net.model(out), inputs), 1e-5)


def _trial(workload: Workload, config: Config, seconds: float, error: float) -> Trial:
    version = template_named(config.template).version
    return Trial(workload, BOARD.key, config, version, times=(seconds,), failure=None, error=error)


def test_measured_configs_are_built(tmp_path: Path) -> None:
    """Those of the same operator in float32 are others."""
    _, _, whole = network(tmp_path)
    graph = with_bfloats(whole, [BOARD.target])
    rng = random.Random(1)
    with open_db(tmp_path / "t.db") as store:
        found: dict[str, Config] = {}
        for tasks in (tasks_of(whole), tasks_of(graph)):
            workload = tasks[0].workload
            space = search_space(workload, BOARD.target)
            assert space is not None
            right, wrong = (next(s for s in space.spaces).sample(rng) for _ in range(2))
            assert right is not None
            assert wrong is not None
            store.add(_trial(workload, right, 2e-3, 5e-6))
            store.add(_trial(workload, wrong, 1e-3, 5e-3))  # as far off as if operands had lost more digits
            best = lookup.best(store, workload, BOARD.key)
            assert best is not None
            found[workload.dtype] = best.trial.config
        assert set(found) == {"float32", "bfloat16"}
        assert found["bfloat16"].template == "cpu.conv2d_bfloat16"
        for network_, dtype in ((whole, "float32"), (graph, "bfloat16")):
            manifest = build(network_, BOARD, tmp_path / dtype, store, options=BuildOptions(link=False))
            assert manifest.dtype == dtype
            assert manifest.operators[0].config == found[dtype]
