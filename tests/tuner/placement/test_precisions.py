"""Which anchors of a quantised network are computed in float32, by times of kernels and of conversions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.support import host_target
from tests.tuner.graph.quantised import branching, quantise
from tests.tuner.placement.databases import converted, measured, tuned
from tuner.devices import Device, open_device
from tuner.graph import FusedGraph, float_form, fuse, load_onnx, with_floats
from tuner.graph.fusion.steps import PlainStep
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import is_call
from tuner.graph.layout.choice import choose
from tuner.placement.conversions import SIZES, TYPES, conversions_of, measure_conversions
from tuner.placement.precisions import choose_precisions
from tuner.placement.step_costs import Costs
from tuner.precision import Precision
from tuning_db.store import Store, open_db

pytestmark = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu", 1)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    folder = tmp_path_factory.mktemp("precisions")
    path = quantise(branching(folder / "float.onnx"), folder / "net.onnx", (1, 3, 16, 16))
    return fuse(load_onnx(path), integers=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "t.db") as found:
        yield found


def letters(found: Sequence[Precision]) -> str:
    return "".join("f" if precision.in_float else "i" for precision in found)


def test_the_one_that_is_slow_in_integers_is_computed_in_float(graph: FusedGraph, device: Device, store: Store) -> None:
    tuned(store, device, graph, integers=[10, 10, 90, 10, 10], floats=[30, 30, 30, 30, 30])
    converted(store, device, 1e-6, 1e-9)
    found = choose_precisions(graph, device, store)
    assert letters(found) == "iifii"
    slow, other = found[2], found[3]
    assert (slow.source, slow.integers, slow.floats) == ("measured", pytest.approx(9e-5), pytest.approx(3e-5))
    assert slow.conversions == pytest.approx(2 * (1e-6 + 16**3 * 1e-9))
    assert (slow.why, other.why) == ("float32 takes less", "integers take less")
    assert [a.workload.dtype for a in with_floats(graph, lambda s: s.node == slow.node).anchors].count(INTEGERS) == 4


def test_one_whose_conversions_take_more_than_it_saves_stays(graph: FusedGraph, device: Device, store: Store) -> None:
    tuned(store, device, graph, integers=[10, 10, 34, 10, 10], floats=[30, 30, 30, 30, 30])
    converted(store, device, 1e-6, 1e-9)
    found = choose_precisions(graph, device, store)
    assert letters(found) == "iiiii"
    assert found[2].why == "the conversions take more than float32 saves"


def test_neighbours_share_conversions(graph: FusedGraph, device: Device, store: Store) -> None:
    """No one of these gains in float alone, but all of them together."""
    tuned(store, device, graph, integers=[10, 34, 34, 34, 10], floats=[30, 30, 30, 30, 30])
    converted(store, device, 2.5e-6, 0.0)
    found = choose_precisions(graph, device, store)
    assert letters(found) == "ifffi"
    assert {f.why for f in found if f.in_float} == {"float32 takes less"}


def _cost(graph: FusedGraph, device: Device, store: Store, chosen: str) -> float:
    """What a choice costs: the kernels and the conversions that the graph then has. A conversion that begins with what
    a plain step makes is done by that step, without a launch. So is that of bytes which are added while a result is
    quantised."""
    floats = {s.out for s, letter in zip(graph.anchors, chosen, strict=True) if letter == "f"}
    made, before = with_floats(graph, lambda s: s.out in floats), {s.out for s in graph.steps}
    times, known = conversions_of(store, device), {s.out: s for s in graph.anchors}
    total = 0.0
    for step in graph.anchors:
        form = float_form(step)
        assert form is not None
        workload = form.workload if step.out in floats else step.workload
        total += choose([workload], device, store)[workload].seconds or 0.0
    for step in made.steps:
        if not isinstance(step, PlainStep) or not is_call(step.value, "astype"):
            continue
        values, to = prod(shape_of(step.out) or ()), dtype_of(step.out)
        if "_quantised" in step.out.name:
            continue
        if step.out not in before:  # bytes become real numbers
            total += times.seconds(values, str(to), in_pass=step.value.args[0] not in known)
        elif step.out in floats:
            total += times.seconds(values, str(to))
    return total


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_takes_less(graph: FusedGraph, device: Device, store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tuned(store, device, graph, integers=rng.uniform(5, 40, 5), floats=rng.uniform(5, 40, 5))
    converted(store, device, rng.uniform(0, 5e-6), rng.uniform(0, 2e-9))
    costs = {"".join(c): _cost(graph, device, store, "".join(c)) for c in product("if", repeat=5)}
    assert costs[letters(choose_precisions(graph, device, store))] == pytest.approx(min(costs.values()))


def test_without_times_integers_are_what_the_instructions_are_for(graph: FusedGraph, device: Device) -> None:
    found = choose_precisions(graph, device, None)
    assert letters(found) == "iiiii"
    assert {f.source for f in found} == {"estimated"}


def test_one_time_is_compared_with_an_estimate_in_proportion(graph: FusedGraph, device: Device, store: Store) -> None:
    (before, *_), slow = choose_precisions(graph, device, store), graph.anchors[0]
    measured(store, device, slow.workload, 1.0)
    after, *_ = choose_precisions(graph, device, store)
    assert (before.integers, before.floats, after.integers, after.source) != (None, None, None, "measured")
    assert after.integers == pytest.approx(1.0)
    assert after.floats is not None
    assert after.floats == pytest.approx((before.floats or 0) / (before.integers or 1))


def test_rates_are_those_of_the_databases_kernels_of_the_kind(graph: FusedGraph, device: Device, store: Store) -> None:
    """Where kernels of integers were ten times as slow as those of float32, so is one that was not measured."""
    tuned(store, device, graph, integers=[900, 900, 900, 900, 1], floats=[90, 90, 90, 90, 1])
    wide = replace(graph.anchors[1], workload=replace(graph.anchors[1].workload, epilogue=("real", "quantize")))
    other = replace(graph, steps=tuple(wide if s.out.same_as(wide.out) else s for s in graph.steps))
    assert choose([wide.workload], device, store)[wide.workload].source != "device"
    assert letters(choose_precisions(other, device, store))[:2] == "ff"


def test_conversions_are_measured_once(device: Device, store: Store) -> None:
    assert conversions_of(store, device).source == "estimated"
    costs = Costs([device], store)
    measure_conversions(costs)
    assert costs.measured == len(TYPES) * len(SIZES)
    known = conversions_of(store, device)
    assert known.source == "measured"
    assert 0 < known.seconds(1 << 12, INTEGERS) <= known.seconds(1 << 22, INTEGERS)
    measure_conversions(costs)
    assert costs.measured == len(TYPES) * len(SIZES)
