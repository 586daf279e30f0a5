"""The graph tuner on the zoo's graphs, with random costs: exact, and no slower than simpler ways of choosing."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tvm.ir import Var

from templates.template import PLAIN, Layout
from tuner import zoo
from tuner.graph import fuse, load_onnx
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, reads_of
from tuner.graph.layout.plan import Form, Moving, Node, State, greedy, plan, seconds_of

LAYOUTS = PLAIN, Layout(8), Layout(16)


def nodes_of(graph: FusedGraph, rng: np.random.Generator) -> tuple[Node, ...]:
    """Every step on two devices, in three layouts: convolutions with any mix of those, others in one."""
    index = {v: i for i, v in enumerate([*graph.parameters, *(s.out for s in graph.steps)])}
    inputs = [Node(str(p.name), (), (State((), Form(0, PLAIN), 0.0),)) for p in graph.parameters]
    steps = []
    for step in graph.steps:
        operands = tuple(index[v] for v in dict.fromkeys(reads_of(step)))
        pairs = [(a, b) for a in LAYOUTS for b in LAYOUTS if a == b or isinstance(step, AnchorStep)]
        states = [
            State(tuple(Form(device, a) for _ in operands), Form(device, b), float(rng.random()))
            for device in (0, 1)
            for a, b in pairs
        ]
        steps.append(Node(step.node, operands, tuple(states)))
    results = [o for o in graph.outputs if isinstance(o, Var)]
    ends = [Node(f"result {o.name}", (index[o],), (State((Form(0, PLAIN),), Form(0, PLAIN), 0.0),)) for o in results]
    return (*inputs, *steps, *ends)


def moving(seed: int) -> Moving:
    @cache
    def cost(*key: object) -> float:
        return float(np.random.default_rng(zlib.crc32(repr((seed, *key)).encode())).random())

    return Moving(lambda *key: 3 * cost(*key), lambda *key: cost(*key))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["resnet50_v1", "inception_v3", "squeezenet1.0", "ssd_300_resnet50_v1", "yolo3_416"])
def test_the_best_plan_is_found(tmp_path: Path, name: str) -> None:
    graph = fuse(load_onnx(zoo.write_model(name, tmp_path / f"{name}.onnx")))
    nodes, cost = nodes_of(graph, np.random.default_rng(0)), moving(0)
    found = plan(nodes, cost)
    assert found.optimal
    assert found.seconds == pytest.approx(seconds_of(nodes, cost, found.states))
    assert found.seconds <= seconds_of(nodes, cost, greedy(nodes, cost)) + 1e-9
    for layout in LAYOUTS:
        kept = {Form(0, layout), Form(0, PLAIN)}
        less = [replace(n, states=tuple(s for s in n.states if {*s.reads, s.makes} <= kept) or n.states) for n in nodes]
        one = plan(less, cost).seconds
        assert math.isfinite(one)
        assert found.seconds <= one + 1e-9
