"""Networks in half precision for ARM's CPUs: their tasks, what the database has for them, bundles for their boards."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from templates.template import search_space, template_named
from tests.board_agent.bundles import on_the_device
from tests.tuner.cli.conftest import run_tune
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices.cpu import cpu_elsewhere
from tuner.graph import FusedGraph, halved, tasks_of
from tuner.module import BuildOptions, build
from tuning_db import lookup
from tuning_db.record import Config, DeviceKey, Trial, Workload
from tuning_db.store import open_db

NEON = DeviceKey("cpu", "aarch64-neon", "cortex-a76", {"threads": 4, "last_level_cache_bytes": 2 << 20})


def _network(folder: Path) -> FusedGraph:
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 16, 12, 12), (16, 24), 3, pads=[1] * 4))
    return halved(net.graph(folder, net.op("Flatten", net.op("GlobalAveragePool", x))))


def _trial(workload: Workload, config: Config, seconds: float, error: float) -> Trial:
    version = template_named(config.template).version
    return Trial(workload, NEON, config, version, times=(seconds,), failure=None, error=error)


def test_measured_configs_are_built(tmp_path: Path) -> None:
    graph, device = _network(tmp_path), cpu_elsewhere("rpi5")
    (task,) = tasks_of(graph)
    space = search_space(task.workload, device.target)
    assert space is not None
    names = {one.template: one for one in space.spaces}
    assert set(names) == {"cpu.conv2d_direct", "cpu.conv2d_winograd"}
    rng = random.Random(1)
    config = names["cpu.conv2d_winograd"].sample(rng)
    wrong = names["cpu.conv2d_direct"].sample(rng)
    assert config is not None
    assert wrong is not None
    with open_db(tmp_path / "t.db") as store:
        store.add(_trial(task.workload, config, 2e-3, 4e-3))
        store.add(_trial(task.workload, wrong, 1e-3, 3e-2))  # its sums are off by too much
        best = lookup.best(store, task.workload, device.key)
        assert best is not None
        assert best.trial.config == config
        manifest = build(graph, device, tmp_path / "m", store, options=BuildOptions(link=False))
    assert [operator.config for operator in manifest.operators] == [config]
    done = run_tune("report", "--db", "t.db", "-o", "report.html", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "float16" in (tmp_path / "report.html").read_text()


BUNDLE = ("bundle", "make", "tiny.onnx", "--facts", "facts.json", "--threads", 1, "--configs", 2, "--dtype", "float16")


def _write_facts(folder: Path, part: str, flags: list[str]) -> None:
    """A small network, and the facts of a board with such a core."""
    write_tiny_network(folder / "tiny.onnx")
    assert run_tune("board", "agent", "-o", "agent.pyz", cwd=folder).status == 0
    facts = json.loads(on_the_device("agent.pyz", "--facts", cwd=folder).stdout)
    facts |= {"machine": "aarch64", "cpu_ids": ["0x41", part], "cpu_flags": flags, "cpu_name": "", "emulated": False}
    (folder / "facts.json").write_text(json.dumps(facts))


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-ld") is None,
    reason="no linker for aarch64 (apt-get install binutils-aarch64-linux-gnu)",
)
@pytest.mark.parametrize(("part", "name"), [("0xd0b", "cortex-a76"), ("0x999", "generic")])
def test_a_bundle_for_a_board(part: str, name: str, tmp_path: Path) -> None:
    """The board of a core that has no name here says itself what it has."""
    _write_facts(tmp_path, part, ["asimd", "asimdhp"])
    made = run_tune(*BUNDLE, "--json", cwd=tmp_path)
    assert made.status == 0, made.err
    assert made.json()["candidates"] > 4
    assert made.json()["device"]["model"] == name


def test_no_bundle_for_a_board_without_halves(tmp_path: Path) -> None:
    _write_facts(tmp_path, "0xd08", ["asimd"])
    refused = run_tune(*BUNDLE, cwd=tmp_path)
    assert refused.status == 2
    assert "this CPU has no arithmetic in halves (asimdhp on ARM); use float32" in refused.error
