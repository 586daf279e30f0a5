"""Building into a directory: choices from the database, nothing half-written, nothing overwritten by mistake."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from templates.template import search_space, template_named
from tests.manifests import write_manifest
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.module import BuildOptions, OnnxReference, VerifyOptions, build, choose, load, read_manifest, verify
from tuning_db.record import Config, DeviceKey, Trial, Workload
from tuning_db.store import Store, open_db


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu", 1)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    return fuse(load_onnx(write_tiny_network(tmp_path_factory.mktemp("model") / "tiny.onnx")))


def trial(workload: Workload, device: DeviceKey, config: Config, seconds: float, **changes: object) -> Trial:
    version = template_named(config.template).version
    return Trial(
        workload, device, config, **{"template_version": version, "times": (seconds,), "error": 1e-7, **changes}
    )


def configs(workload: Workload, device: Device, count: int) -> list[Config]:
    space = search_space(workload, device.target)
    assert space is not None
    return [config for config, _ in zip(space, range(count), strict=False)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_db(str(tmp_path / "t.db"))


def test_a_module_is_complete_and_says_where_everything_came_from(
    tmp_path: Path, device: Device, graph: FusedGraph
) -> None:
    manifest = build(graph, device, tmp_path / "m")
    assert manifest == read_manifest(tmp_path / "m")
    assert {p.name for p in (tmp_path / "m").iterdir()} == {"manifest.json", *manifest.files}
    assert manifest.model["sha256"] == graph.model.sha256
    assert manifest.threads == 1
    assert [DeviceKey.from_dict(p.key) for p in manifest.devices] == [device.key]
    assert [o.node for o in manifest.operators] == [s.node for s in graph.anchors]
    assert {o.source for o in manifest.operators} == {"default"}
    assert all(o.config is not None and o.function is not None for o in manifest.operators)
    assert set(manifest.versions) >= {"edgetune", "apache-tvm", "numpy"}
    assert not [p for p in tmp_path.iterdir() if p.name != "m"]


def test_the_best_config_of_the_device_is_taken(
    tmp_path: Path, device: Device, graph: FusedGraph, store: Store
) -> None:
    workload = graph.anchors[0].workload
    slow, fast = configs(workload, device, 2)
    store.add(trial(workload, device.key, slow, 2e-3))
    store.add(trial(workload, device.key, fast, 1e-3))
    manifest = build(graph, device, tmp_path / "m", store=store)
    first = manifest.operators[0]
    assert (first.config, first.source, first.seconds, first.error) == (fast, "device", 1e-3, 1e-7)
    assert {o.source for o in manifest.operators[1:]} == {"default"}
    module = load(tmp_path / "m")
    assert max(verify(module, OnnxReference(graph.model.source), VerifyOptions(seeds=[0])).values()) < 1e-5


def test_relatives_are_asked_where_the_device_knows_nothing(device: Device, graph: FusedGraph, store: Store) -> None:
    workload = graph.anchors[0].workload
    other = DeviceKey(device.key.kind, device.key.family, "another", device.key.attrs)
    (config,) = configs(workload, device, 1)
    store.add(trial(workload, other, config, 1e-3))
    assert choose([workload], device, store)[workload].source == "family"


def test_trials_that_no_longer_hold_are_passed_over(device: Device, graph: FusedGraph, store: Store) -> None:
    workload = graph.anchors[0].workload
    good, old, gone = configs(workload, device, 3)
    store.add(trial(workload, device.key, good, 3e-3))
    store.add(trial(workload, device.key, old, 1e-3, template_version=0))
    store.add(trial(workload, device.key, Config(gone.template, {**gone.knobs, "ob": 977}), 2e-3))
    assert choose([workload], device, store)[workload].config == good


def test_exact_leaves_out_winograd(device: Device, tmp_path: Path, store: Store) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.conv(net.input(1, 32, 12, 12), (32, 32), pads=[1, 1, 1, 1]))
    (workload,) = [s.workload for s in graph.anchors]
    space = search_space(workload, device.target)
    assert space is not None
    inexact = next(c for c in space if not template_named(c.template).exact)
    store.add(trial(workload, device.key, inexact, 1e-6))
    assert choose([workload], device, store)[workload].config == inexact
    exact = choose([workload], device, store, exact=True)[workload].config
    assert exact is not None
    assert template_named(exact.template).exact


def test_every_template_that_applies_gives_a_right_module(device: Device, tmp_path: Path) -> None:
    """Not only the default: one config of every template, in a network."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 16, 12, 12), (16, 32), pads=[1, 1, 1, 1]))
    out = net.op("Relu", net.op("Add", net.conv(x, (32, 32), pads=[1, 1, 1, 1]), x))
    graph = net.graph(tmp_path, out)
    spaces = {w: search_space(w, device.target) for w in {s.workload for s in graph.anchors}}
    names = {space.template for s in spaces.values() if s is not None for space in s.spaces}
    assert len(names) >= 2
    for name in names:
        from tuner.module import Choice

        choices = {
            w: Choice(next(c for c in s.seed_configs() if c.template == name), "device")
            for w, s in spaces.items()
            if s is not None and any(space.template == name for space in s.spaces)
        }
        build(graph, device, tmp_path / "m", choices=choices)
        errors = verify(load(tmp_path / "m"), OnnxReference(graph.model.source), VerifyOptions(seeds=[0]))
        assert max(errors.values()) < 1e-4


def test_a_stored_config_that_cannot_be_applied(device: Device, graph: FusedGraph, tmp_path: Path) -> None:
    from tuner.module import Choice

    step = graph.anchors[0]
    bad = Choice(Config("cpu.unheard_of", {}), "device")
    with pytest.raises(BadInput, match=r"cpu\.unheard_of"):
        build(graph, device, tmp_path / "m", choices={step.workload: bad})
    assert not (tmp_path / "m").exists()


def test_a_link_to_a_module_stays_one_and_the_current_folder_is_refused(
    tmp_path: Path, device: Device, graph: FusedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for _ in range(2):
        build(graph, device, tmp_path / "link")
    assert {p.name for p in tmp_path.iterdir()} == {"there", "link"}
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there/manifest.json").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BadInput, match=r"^\.: cannot be replaced as a whole"):
        build(graph, device, ".")


def test_a_module_is_replaced_and_anything_else_is_not(tmp_path: Path, device: Device, graph: FusedGraph) -> None:
    build(graph, device, tmp_path / "m")
    manifest = build(graph, device, tmp_path / "m")
    assert {p.name for p in (tmp_path / "m").iterdir()} == {"manifest.json", *manifest.files}
    for name, content in (("precious", {"thesis.txt": "x"}), ("json", {"manifest.json": "{}"})):
        (tmp_path / name).mkdir()
        for file, text in content.items():
            (tmp_path / name / file).write_text(text)
        with pytest.raises(BadInput, match="not a built module"):
            build(graph, device, tmp_path / name)
        assert {p.name for p in (tmp_path / name).iterdir()} == set(content)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="not a built module"):
        build(graph, device, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    build(graph, device, tmp_path / "empty")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "json", "m", "precious"]


def test_what_no_build_wrote_is_still_there_after_the_next_one(
    tmp_path: Path, device: Device, graph: FusedGraph
) -> None:
    """Notes, a folder, and a library that somebody has named as a part of a module."""
    build(graph, device, tmp_path / "m")
    mine = {"notes.txt": "a", "results/run1.csv": "b", "parallel-0123456789abcdef.so": "c"}
    for name, text in mine.items():
        (tmp_path / "m" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "m" / name).write_text(text)
    manifest = build(graph, device, tmp_path / "m")
    assert {name: (tmp_path / "m" / name).read_text() for name in mine} == mine
    known = {"manifest.json", *manifest.files, "notes.txt", "results", "parallel-0123456789abcdef.so"}
    assert {p.name for p in (tmp_path / "m").iterdir()} == known
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_what_has_a_name_of_the_new_module_stays_beside_it(tmp_path: Path, device: Device, graph: FusedGraph) -> None:
    """It is not in the old module's manifest: no build wrote it."""
    build(graph, device, tmp_path / "m")
    manifest = tmp_path / "m" / "manifest.json"
    data = json.loads(manifest.read_text())
    del data["files"]["network.ro"]
    write_manifest(manifest.parent, data)
    (tmp_path / "m" / "network.ro").write_text("mine")
    build(graph, device, tmp_path / "m")
    (kept,) = tmp_path.glob(".m.*")
    assert (kept / "network.ro").read_text() == "mine"
    read_manifest(tmp_path / "m")


def test_a_failed_check_leaves_the_old_module(tmp_path: Path, device: Device, graph: FusedGraph) -> None:
    build(graph, device, tmp_path / "m")
    before = (tmp_path / "m" / "manifest.json").read_text()

    def refuse(folder: Path) -> None:
        raise BadInput(f"{folder.name} is not good enough")

    with pytest.raises(BadInput, match="not good enough"):
        build(graph, device, tmp_path / "m", options=BuildOptions(check=refuse))
    assert (tmp_path / "m" / "manifest.json").read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_folder_that_does_not_exist(tmp_path: Path, device: Device, graph: FusedGraph) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        build(graph, device, tmp_path / "none" / "m")


def test_a_folder_that_cannot_be_written(device: Device, graph: FusedGraph) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        build(graph, device, Path("/proc/m"))


def test_a_full_disk(tmp_path: Path, device: Device) -> None:
    """On a file system of one megabyte: one clear line, nothing left behind."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=1m tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("needs the right to mount")
    try:
        net = Net()
        large = net.graph(tmp_path, net.op("Gemm", net.input(1, 1024), net.weight(1024, 512)))
        with pytest.raises(BadInput, match=str(disk / "m")):
            build(large, device, disk / "m")
        assert list(disk.iterdir()) == []
    finally:
        os.system(f"umount {disk}")


def test_weights_are_stored_once(tmp_path: Path, device: Device) -> None:
    net = Net()
    x = net.input(1, 256)
    weight = net.weight(256, 256, scale=1 / 16)
    for _ in range(4):
        x = net.op("Relu", net.op("MatMul", x, weight))
    build(net.graph(tmp_path, x), device, tmp_path / "m")
    assert sum(p.stat().st_size for p in (tmp_path / "m").iterdir()) < 2 * 256 * 256 * 4


def test_the_directory_can_be_moved(tmp_path: Path, device: Device, graph: FusedGraph) -> None:
    build(graph, device, tmp_path / "m")
    shutil.move(tmp_path / "m", tmp_path / "elsewhere")
    module = load(tmp_path / "elsewhere")
    shape, dtype = module.inputs["data"]
    assert module({"data": np.zeros(shape, dtype)}).keys() == set(module.outputs)


def test_the_manifest_is_plain_json(tmp_path: Path, device: Device, graph: FusedGraph) -> None:
    build(graph, device, tmp_path / "m")
    data = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert data["kind"] == "edgetune-module"
    assert data["operators"][0]["workload"]["op"] == "conv2d"
