"""Kernels are chosen so that their weights fit into a limit, at the least cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from templates.template import anchor_template, search_space
from tests.tuner.cli.conftest import run_tune
from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import AnchorStep, FusedGraph, fuse, load_onnx
from tuner.graph.layout.choice import Choice, choose
from tuner.graph.layout.weights import smallest, within
from tuner.module import BuildOptions, OnnxReference, VerifyOptions, build, load, verify
from tuner.module.builder import Objective
from tuning_db.record import Trial
from tuning_db.store import Store, open_db

PLAIN = 64 * 64 * 9 * 4  # bytes of a weight as it is
LARGE = PLAIN * 4  # transformed for tiles of 4 x 4 outputs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "t.db") as found:
        yield found


@pytest.fixture
def device() -> Device:
    return open_device("cpu", 1)


@pytest.fixture
def graph(tmp_path: Path) -> FusedGraph:
    """Two convolutions of 64 channels, of which the second has fewer pixels."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 64, 28, 28), (64, 64), pads=[1, 1, 1, 1]))
    x = net.conv(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), (64, 64), pads=[1, 1, 1, 1])
    return fuse(load_onnx(net.save(tmp_path / "net.onnx", x)))


def _tuned(graph: FusedGraph, device: Device, store: Store, seconds: list[tuple[float, float]]) -> None:
    """Record, for each convolution, how long Winograd's kernel and a direct one take."""
    for step, times in zip([s for s in graph.steps if isinstance(s, AnchorStep)], seconds, strict=True):
        space = search_space(step.workload, device.target)
        assert space is not None
        seeds = space.seed_configs()
        winograd = next(c for c in seeds if c.template == "cpu.conv2d_winograd" and c["m"] == 4)
        direct = next(c for c in seeds if c.template == "cpu.conv2d_direct")
        for config, time in zip((winograd, direct), times, strict=True):
            version = anchor_template(config.template).version
            store.add(Trial(step.workload, device.key, config, version, (time,), error=1e-7))


def _templates(graph: FusedGraph, chosen: dict[object, Choice]) -> list[str]:
    anchors = [s for s in graph.steps if isinstance(s, AnchorStep)]
    return [config.template.partition(".")[2] for s in anchors if (config := chosen[s.out].config) is not None]


def test_what_costs_least_is_replaced_first(graph: FusedGraph, device: Device, store: Store) -> None:
    _tuned(graph, device, store, [(1e-3, 3e-3), (1e-3, 2e-3)])
    anchors = [s for s in graph.steps if isinstance(s, AnchorStep)]
    best = choose([s.workload for s in anchors], device, store)
    chosen = {s.out: best[s.workload] for s in anchors}
    direct, winograd = "conv2d_direct", "conv2d_winograd"
    for limit, wanted in (
        (2 * LARGE, [winograd, winograd]),
        (LARGE + PLAIN, [winograd, direct]),
        (2 * PLAIN, [direct] * 2),
    ):
        assert _templates(graph, within(limit, anchors, chosen, device=device, store=store)) == wanted
    with pytest.raises(BadInput, match=r"the weights take 0\.3 MiB at least, above the limit"):
        within(2 * PLAIN - 1, anchors, chosen, device=device, store=store)


def test_a_module_within_a_limit(graph: FusedGraph, device: Device, store: Store, tmp_path: Path) -> None:
    """Its constants are smaller, and nothing else is."""
    _tuned(graph, device, store, [(1e-3, 3e-3), (1e-3, 2e-3)])
    for name, limit in (("free", None), ("small", 2 * PLAIN)):
        build(graph, device, tmp_path / name, store, options=BuildOptions(max_weights=limit))
    free, small = ((tmp_path / n / "constants-0.params").stat().st_size for n in ("free", "small"))
    assert free - small == 2 * (LARGE - PLAIN)


def test_by_size_the_smallest_weights_count_and_of_these_the_fastest(
    graph: FusedGraph, device: Device, store: Store, tmp_path: Path
) -> None:
    """Winograd is the fastest in the database. Without it weights are as in the model, and the results are right."""
    _tuned(graph, device, store, [(1e-3, 3e-3), (1e-3, 2e-3)])
    reference, sizes = OnnxReference(tmp_path / "net.onnx"), {}
    objectives: tuple[Objective, ...] = ("latency", "size")
    for objective in objectives:
        manifest = build(graph, device, tmp_path / objective, store, options=BuildOptions(objective=objective))
        assert max(verify(load(tmp_path / objective), reference, VerifyOptions(seeds=(0,))).values()) < 1e-5
        sizes[objective] = manifest.sizes
        wanted = "cpu.conv2d_winograd" if objective == "latency" else "cpu.conv2d_direct"
        assert [(o.config and o.config.template, o.source) for o in manifest.operators] == [(wanted, "device")] * 2
    assert sizes["latency"].weights - sizes["size"].weights == pytest.approx(2 * (LARGE - PLAIN), abs=2000)
    assert sizes["size"].workspaces < sizes["latency"].workspaces


def test_what_is_smallest_already_stays(graph: FusedGraph, device: Device, store: Store) -> None:
    anchors = [s for s in graph.steps if isinstance(s, AnchorStep)]
    direct = search_space(anchors[0].workload, device.target, ["cpu.conv2d_direct"])
    assert direct is not None
    kept = Choice(direct.seed_configs()[-1], "plan")
    assert smallest(anchors[:1], {anchors[0].out: kept}, device=device, store=store) == {anchors[0].out: kept}
    assert smallest(anchors, {}, device=device, store=store) == {}


def test_times_of_two_devices_are_not_compared(graph: FusedGraph, device: Device, store: Store) -> None:
    """The second convolution has a kernel whose time is another device's: what a direct one costs more is not known, so
    that the first is replaced."""
    _tuned(graph, device, store, [(1e-3, 3e-3), (1e-3, 2e-3)])
    anchors = [s for s in graph.steps if isinstance(s, AnchorStep)]
    best = choose([s.workload for s in anchors], device, store)
    first, second = anchors
    chosen = {first.out: best[first.workload], second.out: replace(best[second.workload], source="family")}
    direct, winograd = "conv2d_direct", "conv2d_winograd"
    found = within(LARGE + PLAIN, anchors, chosen, device=device, store=store)
    assert _templates(graph, found) == [direct, winograd]


def test_by_size_by_the_command(tmp_path: Path) -> None:
    net = Net()
    net.save(tmp_path / "net.onnx", net.conv(net.input(1, 64, 28, 28), (64, 64), pads=[1, 1, 1, 1]))
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("build", "net.onnx", "-o", "small", "--objective", "size", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.json()["sizes"]["weights"] < PLAIN + 4_000
    done = run_tune("export", "net.onnx", "-o", "c", "--objective", "size", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.json()["weights"] < PLAIN + 4_000
    for words, line in (
        (("export", "small", "-o", "d", "--objective", "size"), "options of a build go with a model"),
        (("build", "net.onnx", "-o", "d", "--plan", "p", "--objective", "size"), "leave --objective away"),
    ):
        done = run_tune(*words, cwd=tmp_path)
        assert (done.status, line in done.error) == (2, True), done.err


def test_by_the_command(tmp_path: Path) -> None:
    net = Net()
    net.save(tmp_path / "net.onnx", net.conv(net.input(1, 64, 28, 28), (64, 64), pads=[1, 1, 1, 1]))
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("build", "net.onnx", "-o", "small", "--max-weights", "0.15MB", cwd=tmp_path)
    assert done.status == 0, done.err
    assert (tmp_path / "small" / "constants-0.params").stat().st_size < 150_000 + 2_000
    for words, line in ((["1KB"], "the weights take 0.1 MiB at least"), (["much"], "--max-weights 'much': is no size")):
        done = run_tune("build", "net.onnx", "-o", "none", "--max-weights", *words, cwd=tmp_path)
        assert (done.status, line in done.error) == (2, True), done.err
    assert not (tmp_path / "none").exists()
