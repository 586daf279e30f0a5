"""Kernels are chosen by the memory that an inference needs at its peak, its weights included."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from tvm.ir import Var

from templates.template import default_config, search_space, template_named
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import NETWORKS
from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.graph.layout.choice import Choice, Planned, choose, choose_of_each
from tuner.graph.layout.peak import EQUAL
from tuner.graph.layout.weights import smallest
from tuner.module import (
    BuildOptions,
    Manifest,
    OnnxReference,
    VerifyOptions,
    build,
    build_placed,
    load,
    read_manifest,
    verify,
)
from tuner.module.by_memory import Chooser
from tuner.module.footprint import Footprint, Lowering
from tuning_db.record import Config, Trial
from tuning_db.store import Store, open_db


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "t.db") as found:
        yield found


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu", 2)


def _write(path: Path) -> Path:
    """Write a network with a first convolution, which may read plain data, and two others that Winograd suits."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 32, 32, name="data"), (3, 32), pads=[1] * 4))
    x = net.op("Relu", net.conv(x, (32, 64), pads=[1] * 4))
    x = net.conv(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), (64, 64), pads=[1] * 4)
    return net.save(path, net.op("Relu", x))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    return fuse(load_onnx(_write(tmp_path_factory.mktemp("model") / "net.onnx")))


def lowering_of(graph: FusedGraph, device: Device) -> Lowering:
    return Lowering(graph, device, Planned([0] * len(graph.steps)))


def fastest_of(graph: FusedGraph, device: Device, store: Store | None = None) -> dict[Var, Choice]:
    """Return the kernels that are chosen by latency."""
    best = choose([s.workload for s in graph.tuned], device, store)
    return {s.out: best[s.workload] for s in graph.tuned}


def _tuned(graph: FusedGraph, device: Device, store: Store, seed: int) -> None:
    """Record random times of some first configs of each workload."""
    drawn = random.Random(seed)
    for workload in dict.fromkeys(step.workload for step in graph.tuned):
        space = search_space(workload, device.target)
        seeds = [] if space is None else space.seed_configs()
        for config in drawn.sample(seeds, min(3, len(seeds))):
            version = template_named(config.template).version
            store.add(Trial(workload, device.key, config, version, (drawn.uniform(1e-6, 1e-3),), error=1e-7))


def assert_foreseen(manifest: Manifest, footprint: Footprint) -> None:
    """Values and workspaces are what was built, and the weights at most some KiB less."""
    sizes = manifest.sizes
    assert sizes is not None
    assert (footprint.values, footprint.workspaces) == (sizes.values, sizes.workspaces)
    assert 0 <= footprint.weights - sizes.weights <= 8 * 1024 + 2 * 1024 * len(manifest.operators) * 4


@pytest.mark.parametrize("name", ["tiny", "detector"])
def test_what_is_foreseen_is_what_is_built(name: str, exports: Path, device: Device) -> None:
    manifest = read_manifest(exports / f"{name}.module")
    assert manifest.threads == device.threads
    graph = fuse(load_onnx(exports / f"{name}.onnx"))
    assert_foreseen(manifest, lowering_of(graph, device).footprint(fastest_of(graph, device)))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_peak_is_never_above_that_of_other_objectives(
    name: str, exports: Path, device: Device, store: Store
) -> None:
    """The times in the database are drawn."""
    graph = fuse(load_onnx(exports / f"{name}.onnx"))
    _tuned(graph, device, store, seed=len(name))
    lowering, fastest = lowering_of(graph, device), fastest_of(graph, device, store)
    least = lowering.footprint(Chooser(lowering, fastest, store).least()).peak
    assert least <= lowering.footprint(fastest).peak
    size = lowering.footprint(smallest(graph.anchors, fastest, device=device, store=store)).peak
    assert least <= size * (1 + EQUAL)


def test_no_combination_of_the_templates_best_has_a_lower_peak(graph: FusedGraph, device: Device, store: Store) -> None:
    _tuned(graph, device, store, seed=3)
    lowering, fastest = lowering_of(graph, device), fastest_of(graph, device, store)
    least = lowering.footprint(Chooser(lowering, fastest, store).least()).peak
    offered = [list(choose_of_each(step.workload, device, store)) for step in graph.anchors]
    assert max(map(len, offered)) > 1
    for kernels in product(*offered):
        combined = {step.out: kernel for step, kernel in zip(graph.anchors, kernels, strict=True)}
        assert least <= lowering.footprint({**fastest, **combined}).peak * (1 + EQUAL)


def _templates(manifest: Manifest) -> list[str]:
    return [o.config.template.partition(".")[2] for o in manifest.operators if o.config is not None]


def test_modules_keep_a_limit_and_compute_the_same(
    graph: FusedGraph, device: Device, store: Store, tmp_path: Path
) -> None:
    """Winograd is the fastest in the database, and gains most in the second convolution. A limit that is a little below
    what the fastest kernels need changes the kernel that gains least."""
    times = {"conv2d_winograd": (1e-4, 1e-4), "conv2d_direct": (9e-4, 2e-4)}
    for i, step in enumerate(graph.anchors[1:]):
        space = search_space(step.workload, device.target)
        assert space is not None
        for config in space.seed_configs():
            seconds = times.get(config.template.partition(".")[2])
            if seconds is not None:
                version = template_named(config.template).version
                store.add(Trial(step.workload, device.key, config, version, (seconds[i],), error=1e-7))
    reference = OnnxReference(Path(graph.model.source))
    peaks, winograd = {}, {}

    def built(name: str, options: BuildOptions) -> None:
        manifest = build(graph, device, tmp_path / name, store, options=options)
        assert max(verify(load(tmp_path / name), reference, VerifyOptions(seeds=(0,))).values()) < 1e-5
        assert manifest.sizes is not None
        peaks[name] = manifest.sizes.peak
        winograd[name] = [template == "conv2d_winograd" for template in _templates(manifest)[1:]]

    built("fastest", BuildOptions())
    built("least", BuildOptions(objective="memory"))
    assert (winograd["fastest"], winograd["least"]) == ([True, True], [False, False])
    assert peaks["least"] < peaks["fastest"]
    limit = peaks["fastest"] - 1
    built("limited", BuildOptions(max_memory=limit))
    assert peaks["least"] < peaks["limited"] <= limit
    assert winograd["limited"] == [True, False]
    for options in (BuildOptions(max_memory=1000), BuildOptions(objective="memory", max_memory=1000)):
        with pytest.raises(BadInput, match=r"an inference needs 0\.\d MiB with its weights at least, above the limit"):
            build(graph, device, tmp_path / "none", store, options=options)
    with pytest.raises(BadInput, match=r"the weights take 0\.2 MiB at least, above the limit"):
        build(graph, device, tmp_path / "none", store, options=BuildOptions(objective="memory", max_weights=1000))
    assert not (tmp_path / "none").exists()


def test_several_devices_and_stages_are_refused(graph: FusedGraph, device: Device, tmp_path: Path) -> None:
    planned, options = Planned([0] * len(graph.steps)), BuildOptions(objective="memory")
    with pytest.raises(BadInput, match="are for one device: name one"):
        build_placed(graph, [device, device], planned, directory=tmp_path / "m", options=options)
    options = BuildOptions(objective="memory", arrange=lambda placed: placed)
    with pytest.raises(BadInput, match="leave --stages away to choose kernels by memory"):
        build(graph, device, tmp_path / "m", options=options)


def test_the_kernels_that_are_there_stay_where_none_needs_less(graph: FusedGraph, device: Device) -> None:
    """The choice of a choice is the same."""
    lowering = lowering_of(graph, device)
    least = Chooser(lowering, fastest_of(graph, device), None).least()
    assert Chooser(lowering, least, None).least() == least
    peak = lowering.footprint(least).peak
    assert Chooser(lowering, least, None).fastest(peak) == least


def test_a_config_that_cannot_be_applied_is_no_choice(graph: FusedGraph, device: Device) -> None:
    """It takes no room at all, but there is no kernel of it."""
    workload = graph.anchors[-1].workload
    config = default_config(workload, device.target)
    assert config is not None
    lowering = lowering_of(graph, device)
    assert lowering.workspace(workload, config) < math.inf
    broken = Config(config.template, {**config.knobs, "ob": 1 << 20, "tw": 1 << 20})
    assert lowering.workspace(workload, broken) == math.inf


def test_by_the_command(tmp_path: Path) -> None:
    _write(tmp_path / "net.onnx")
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("build", "net.onnx", "-o", "small", "--objective", "memory", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    sizes = done.json()["sizes"]
    assert sizes["peak"] == sizes["weights"] + sizes["values"] + sizes["workspaces"]
    done = run_tune("build", "net.onnx", "-o", "limited", "--max-memory", "1MB", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert sizes["peak"] <= done.json()["sizes"]["peak"] <= 10**6
    for words, line in (
        (("build", "net.onnx", "-o", "none", "--max-memory", "1KB"), "MiB with its weights at least, above the limit"),
        (("build", "net.onnx", "-o", "none", "--max-memory", "much"), "--max-memory 'much': is no size"),
        (("export", "small", "-o", "none", "--max-memory", "1MB"), "options of a build go with a model"),
    ):
        done = run_tune(*words, cwd=tmp_path)
        assert (done.status, line in done.error) == (2, True), done.err
    assert not (tmp_path / "none").exists()


def test_an_export_says_where_room_for_its_inputs_exceeds_the_limit(tmp_path: Path) -> None:
    """A module does not count its inputs, which are elsewhere."""
    net = Net()
    net.save(tmp_path / "net.onnx", net.op("GlobalAveragePool", net.input(1, 16, 64, 64)))
    open_db(tmp_path / "edgetune.db").close()
    for limit, told in (("200KB", True), ("2MB", False)):
        done = run_tune("export", "net.onnx", "-o", "c", "--max-memory", limit, "--json", cwd=tmp_path)
        assert done.status == 0, done.err
        needed = done.json()["weights"] + done.json()["arena"]
        assert needed > 16 * 64 * 64 * 4
        assert ("as its arena has room for inputs: that is above --max-memory" in done.err) == told
