"""Searchers on the nodes of a real Ray cluster propose what they propose here, whatever becomes of the nodes."""

from __future__ import annotations

import math
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from templates.space import Constraint, SearchSpace
from templates.template import search_space
from tests.tuner.measure.ray_cluster import RayCluster, two_nodes
from tests.tuner.session.support import CONV, POINT, VERSIONS, latency
from tuner.devices import open_device
from tuner.measure import Candidate, LocalRunner, MeasureOptions
from tuner.measure.ray.messages import SearchSettings
from tuner.measure.ray.search import RaySearcher, libraries
from tuner.measure.ray.search_link import NodeSearchers
from tuner.measure.replay.runner import ReplayRunner, computed, trial_of
from tuner.search import Experience, Searcher, make_searcher
from tuner.session import Budget, Progress, Task, TuneOptions, tune
from tuning_db.record import Config, Failure, FailureKind, Trial
from tuning_db.store import open_db

pytest.importorskip("ray", reason="Ray is not installed (edgetune[fleet])")

DEVICE = open_device("cpu", 1)
ROUNDS, BATCH, SEED = 8, 8, 7


def namespaces() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces(), reason="another boot id needs user namespaces")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Nodes "a" and "b" that take themselves for another machine."""
    with two_nodes() as made:
        for name in ("a", "b"):
            made.kill(name)
            made.add(name, far=True)
        yield made


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def runner(cluster: RayCluster, said: list[str]) -> Iterator[LocalRunner]:
    with LocalRunner(DEVICE, MeasureOptions(ray=cluster.address), said.append) as made:
        while not all(re.search(f"building on .*{name}/", "\n".join(said)) for name in "ab"):
            made._builder.overlaps()  # it hears of nodes
        said.clear()
        yield made


def space_of(task: Task) -> SearchSpace:
    space = search_space(task.workload, DEVICE.target)
    assert space is not None
    return space


def measured(task: Task, configs: list[Config]) -> list[Trial]:
    trials = []
    for config in configs:
        candidate = Candidate(task.workload, config)
        seconds = latency(candidate)
        result = (seconds,) if math.isfinite(seconds) else Failure(FailureKind.COMPILE, "does not compile")
        trials.append(trial_of(candidate, DEVICE.key, VERSIONS[config.template], result))
    return trials


def searched(searcher: Searcher, rounds: int) -> list[list[Config]]:
    """What it proposes, told of what it proposed before and of another workload."""
    other = space_of(POINT)
    known = Experience(other, measured(POINT, make_searcher("random", other, SEED).propose(64)), 1.0)
    proposals = []
    for _ in range(rounds):
        searcher.learn_from([known])
        proposals.append(searcher.propose(BATCH))
        searcher.observe(measured(CONV, proposals[-1]))
    return proposals


def where(said: list[str]) -> str:
    """The node that searches now."""
    return [m[1] for line in said if (m := re.match(r"Ray: searching on (\w)/", line))][-1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", ["auto", "genetic", "random"])
def test_a_node_proposes_what_is_proposed_here(runner: LocalRunner, said: list[str], spec: str) -> None:
    there = runner.searchers.make(spec, space_of(CONV), SEED)
    assert isinstance(there, RaySearcher)
    assert searched(there, ROUNDS) == searched(make_searcher(spec, space_of(CONV), SEED), ROUNDS)
    assert len(said) == 1, said
    assert where(said) in "ab"


def test_a_node_killed_in_mid_run_costs_time_alone(
    cluster: RayCluster, runner: LocalRunner, said: list[str], tmp_path: Path
) -> None:
    killed = []

    def on_trial(progress: Progress) -> None:
        if progress.session_trials == 40 and not killed:
            killed.append(where(said))
            cluster.kill(killed[0])

    configs = []
    there = TuneOptions(make=runner.searchers.make, progress=on_trial)
    for name, options in (("there", there), ("here", TuneOptions())):
        replayed = ReplayRunner(DEVICE.key, computed(latency), VERSIONS)
        with open_db(tmp_path / f"{name}.db") as store:
            tune(
                [CONV, POINT], DEVICE, store, replayed, replace(options, budget=Budget(trials=96), clock=replayed.clock)
            )
            configs.append([t.config for t in store.trials()])
    assert configs[0] == configs[1]
    assert where(said) != killed[0]
    assert any("as another is gone" in line for line in said), said
    cluster.add(killed[0], far=True)


@pytest.mark.night
def test_where_no_node_is_left_the_search_goes_on_here(
    cluster: RayCluster, runner: LocalRunner, said: list[str]
) -> None:
    there, here = (make("auto", space_of(CONV), SEED) for make in (runner.searchers.make, make_searcher))
    assert searched(there, 3) == searched(here, 3)
    for name in ("a", "b"):
        cluster.kill(name)
    try:
        assert searched(there, 4) == searched(here, 4)
        assert any(line.startswith("Ray: searching here") for line in said), said
    finally:
        for name in ("a", "b"):
            cluster.add(name, far=True)


def test_a_space_that_cannot_be_sent_is_searched_here(runner: LocalRunner, said: list[str]) -> None:
    lock = threading.Lock()
    space = space_of(CONV)
    held = tuple(
        replace(s, constraints=(*s.constraints, Constraint("locked", lambda _: not lock.locked())))
        for s in space.spaces
    )
    space = replace(space, spaces=held)
    assert searched(runner.searchers.make("auto", space, SEED), 4) == searched(make_searcher("auto", space, SEED), 4)
    assert [line for line in said if "cannot be sent" in line], said


def test_nodes_of_this_machine_are_no_help(cluster: RayCluster, said: list[str]) -> None:
    for name in ("a", "b"):
        cluster.kill(name)
        cluster.add(name)
    with LocalRunner(DEVICE, MeasureOptions(ray=cluster.address), said.append) as runner:
        assert not isinstance(runner.searchers.make("auto", space_of(CONV), SEED), RaySearcher)


def test_a_node_with_another_library_says_so() -> None:
    others = tuple((name, "0.1" if name == "numpy" else known) for name, known in libraries())
    assert re.fullmatch(
        r"it has numpy [\d.]+, and this machine 0\.1", NodeSearchers().start(SearchSettings("", (), others)) or ""
    )
    assert NodeSearchers().start(SearchSettings("", (), libraries())) is None
