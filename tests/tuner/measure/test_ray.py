"""Candidates built on the nodes of a real Ray cluster, which are killed, silent, foreign, and come back."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.board_agent.support import NAME, paired_agent
from tests.tuner.measure.misbehaving import candidate
from tests.tuner.measure.ray_cluster import ROOT, RayCluster, two_nodes
from tests.tuner.measure.test_local import EXPECTED, OPTIONS
from tuner.devices import open_device
from tuner.devices.board import Boards
from tuner.errors import BadInput
from tuner.measure import BoardRunner, Candidate, LocalRunner, MeasureOptions
from tuner.measure.messages import BuilderSettings
from tuner.measure.ray.messages import NodeSettings
from tuner.measure.ray.node import NodeBuilder
from tuning_db.record import FailureKind, Trial

pytest.importorskip("ray", reason="Ray is not installed (edgetune[fleet])")

PACKAGES = ("tuner", "templates", "vision_ops", "tuning_db", "board_agent", "tests")
BATCHES = 400  # of candidates, until something that has to happen has happened
TILES = (1, 2, 4, 8)


def namespaces() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with two_nodes() as made:
        yield made


@pytest.fixture
def said() -> list[str]:
    """What the runner says of nodes."""
    return []


@pytest.fixture
def runner(cluster: RayCluster, said: list[str]) -> Iterator[LocalRunner]:
    options = MeasureOptions(
        compile_seconds=OPTIONS.compile_seconds,
        memory_bytes=OPTIONS.memory_bytes,
        plugins=OPTIONS.plugins,
        ray=cluster.address,
    )
    with LocalRunner(open_device("cpu", 1), options, said.append) as made:
        measure_until(made, lambda: all(says(said, f"building on .*{name}/")() for name in "ab"))
        said.clear()
        yield made


def candidates(names: Sequence[str]) -> list[Candidate]:
    return [candidate(name) for name in names]


def measure_until(runner: LocalRunner, happened: Callable[[], bool]) -> None:
    """Measure good candidates, every one of which has to be good, until something has happened."""
    for _ in range(BATCHES):
        trials = list(runner.measure([candidate("good", tile) for tile in TILES * 2]))
        assert [t.failure for t in trials] == [None] * len(trials)
        if happened():
            return
    pytest.fail("it did not happen")


def says(said: list[str], text: str) -> Callable[[], bool]:
    return lambda: any(re.search(text, line) for line in said)


@pytest.mark.night
def test_each_misbehaving_candidate_costs_only_its_own_trial(runner: LocalRunner, said: list[str]) -> None:
    bad = [name for name in EXPECTED if name.startswith("build_")]
    trials: list[Trial] = list(runner.measure(candidates([name for one in bad for name in ("good", one)])))
    assert all(t.ok for t in trials[::2])
    for name, trial in zip(bad, trials[1::2], strict=True):
        kind, message = EXPECTED[name]
        assert trial.failure is not None
        assert trial.failure.kind is kind
        assert re.search(message, trial.failure.message), (name, trial.failure)
    of_nodes = [line for line in said if not re.match("cpu (slowed down|became faster) by", line)]  # the machine may
    assert of_nodes == [], "a candidate took a node away"


@pytest.mark.night
def test_a_run_may_be_left_and_gone_on_with(runner: LocalRunner) -> None:
    trials = runner.measure([candidate("good"), *[candidate("build_hang")] * 3])
    assert next(trials).ok
    trials.close()
    assert all(t.ok for t in runner.measure([candidate("good", tile) for tile in TILES]))
    assert all(t.ok for t in runner.compare([candidate("good", tile) for tile in TILES]))


@pytest.mark.sampled(2)
def test_nothing_builds_here_while_something_is_measured_here(runner: LocalRunner) -> None:
    assert not runner._builder.overlaps(), "the nodes are on this machine"


@pytest.mark.sampled(2)
def test_a_board_measures_what_nodes_build(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        options = MeasureOptions(plugins=OPTIONS.plugins, ray=cluster.address)
        with paired_agent(tmp_path, Boards()), BoardRunner(open_device(f"board:{NAME}", 1), options) as runner:
            assert runner._builder.overlaps()
            does = ("good", "build_raise", "run_abort", "good")
            assert [t.ok for t in runner.measure(candidates(does))] == [True, False, False, True]


@pytest.mark.night
@pytest.mark.skipif(not namespaces(), reason="another boot id needs user namespaces")
def test_other_machines_build_while_something_is_measured_here(cluster: RayCluster, said: list[str]) -> None:
    for name in ("a", "b"):
        cluster.kill(name)
    cluster.add("far", cpus=2, far=True)
    try:
        options = MeasureOptions(compile_seconds=10, plugins=OPTIONS.plugins, ray=cluster.address)
        with LocalRunner(open_device("cpu", 1), options, said.append) as runner:
            assert runner._builder.overlaps()
            trials = runner.measure(candidates(("good", "build_hang")))
            assert next(trials).ok
            (far,) = cluster.builders()
            workers = [child for child in far.children(recursive=True) if child.name() == "tune-build"]
            assert next(trials).failure.kind is FailureKind.COMPILE_TIMEOUT
            assert sum(not worker.is_running() for worker in workers) == 1, "the second build was not under way"
            cluster.add("a")
            measure_until(runner, says(said, "building on a/.* too"))
            assert not runner._builder.overlaps(), "now a node is on this machine"
    finally:
        cluster.kill("far")
        cluster.add("b")


@pytest.mark.night
def test_a_node_that_is_killed_costs_time_alone_and_is_used_again(
    cluster: RayCluster, runner: LocalRunner, said: list[str]
) -> None:
    trials = runner.measure([candidate("good", tile) for tile in TILES * 8])
    assert next(trials).ok
    cluster.kill("b")
    assert [t.failure for t in trials] == [None] * 31
    measure_until(runner, says(said, "node b/.* was lost"))
    cluster.add("b")
    measure_until(runner, says(said, r"building on b/\w+ too \(1 at a time\)"))


@pytest.mark.night
def test_a_node_that_says_nothing_is_given_up_and_used_again(
    cluster: RayCluster, runner: LocalRunner, said: list[str]
) -> None:
    cluster.stop("b")
    try:
        measure_until(runner, says(said, "node b/.* was lost: it does not answer"))
    finally:
        cluster.resume("b")
    measure_until(runner, says(said, "building on b/.* too"))


@pytest.mark.night
def test_where_no_node_is_left_builds_go_on_here(cluster: RayCluster, runner: LocalRunner, said: list[str]) -> None:
    for name in ("a", "b"):
        cluster.kill(name)
    measure_until(runner, says(said, "was lost.*; building here until one is back"))
    for name in ("a", "b"):
        cluster.add(name)
    measure_until(runner, says(said, "building on a/.* too"))
    measure_until(runner, says(said, "building on b/.* too"))


def test_a_node_with_other_sources_is_left_out(cluster: RayCluster, tmp_path: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "templates" / "space.py").open("a") as source:
        source.write("# Another state of the same version.\n")
    for name in ("a", "b"):
        cluster.kill(name)
    cluster.add("other", PYTHONPATH=str(tmp_path))
    try:
        options = MeasureOptions(plugins=OPTIONS.plugins, ray=cluster.address)
        with pytest.raises(BadInput, match=r"node other/.* cannot build: it has other sources of edgetune"):
            LocalRunner(open_device("cpu", 1), options)
    finally:
        cluster.kill("other")
        for name in ("a", "b"):
            cluster.add(name)


def test_a_node_of_another_architecture_says_so() -> None:
    device = open_device("cpu", 1)
    builder = BuilderSettings("cpu", str(device.target), "ld", 1, 1 << 30, None)
    elsewhere = NodeSettings(builder, "riscv64", (), 10.0)
    assert NodeBuilder().start(elsewhere, 1) == f"is {platform.machine()}, and candidates are for riscv64"


def test_closing_leaves_nothing_on_the_nodes(cluster: RayCluster, runner: LocalRunner) -> None:
    assert all(t.ok for t in runner.measure([candidate("good", tile) for tile in TILES]))
    builders = cluster.builders()
    families = [*builders, *(child for process in builders for child in process.children(recursive=True))]
    assert len(families) > len(builders) == 2
    runner.close()
    _, alive = psutil.wait_procs(families, timeout=60)
    assert not alive


@pytest.mark.night
def test_a_second_run_builds_here_until_the_nodes_are_free(cluster: RayCluster, said: list[str]) -> None:
    options = MeasureOptions(plugins=OPTIONS.plugins, ray=cluster.address)
    first = LocalRunner(open_device("cpu", 1), options)
    try:
        with LocalRunner(open_device("cpu", 1), options, said.append) as second:
            assert said == ["Ray: no node is free yet; building here until one is"]
            assert next(second.measure([candidate("good")])).ok
            first.close()
            measure_until(second, says(said, r"building on \w/\w+ too"))
    finally:
        first.close()


def test_the_cluster_is_lost_and_the_run_goes_on(cluster: RayCluster, runner: LocalRunner, said: list[str]) -> None:
    """The last one: there is no cluster after it."""
    cluster.kill("head")
    measure_until(runner, says(said, "the cluster was lost"))
