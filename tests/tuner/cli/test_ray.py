"""`tune op --ray`: the real command and a real cluster, one node of which is killed on the way."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tuner.cli.conftest import TUNE, Done
from tests.tuner.measure.ray_cluster import RayCluster, two_nodes
from tuning_db.record import Trial
from tuning_db.store import open_db

pytest.importorskip("ray", reason="Ray is not installed (edgetune[fleet])")

TRIALS = 96
OP = ("op", "conv2d", "--shape", "1,16,14,14,16,3,3", "--padding", "1", "--threads", "1", "--searcher", "random")
RUN = (*OP, "--trials", str(TRIALS), "--seed", "5")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with two_nodes() as made:
        yield made


def trials_of(path: Path) -> list[Trial]:
    with open_db(path) as store:
        return list(store.trials())


def refusal(done: Done) -> str:
    """The line that refuses, behind the session's own and those that say what takes long."""
    _, *waiting, line = done.err.splitlines()
    assert all(said.startswith("starting what builds and measures") for said in waiting), done.err
    return line


def until_all_build(process: subprocess.Popen[str]) -> str:
    """What the command says until both nodes build and something was measured."""
    said = ""
    assert process.stderr is not None
    for line in process.stderr:
        said += line
        if "in this session" in line and all(re.search(f"building on .*{name}/", said) for name in "ab"):
            break
    return said


@pytest.mark.night  # tests/tuner/measure/test_ray_search.py kills one for every change
def test_a_node_killed_on_the_way_costs_only_time(
    cluster: RayCluster, tune: Callable[..., Done], tmp_path: Path
) -> None:
    command = [TUNE, *RUN, "--ray", cluster.address, "--db", "ray.db"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        said = until_all_build(process)
        cluster.kill("b")
        _, rest = process.communicate()
    assert process.returncode == 0, rest
    assert rest.count("was lost") == 1
    assert "Traceback" not in said + rest
    alone = tune(*RUN, "--db", "pool.db")
    assert alone.status == 0, alone.err
    there, here = (trials_of(tmp_path / name)[:TRIALS] for name in ("ray.db", "pool.db"))
    assert len(there) == TRIALS
    assert [t.config for t in there] == [t.config for t in here]
    assert [t.failure for t in there] == [t.failure for t in here] == [None] * TRIALS
    cluster.add("b")


@pytest.mark.sampled(2)
def test_an_interrupt_ends_what_runs_on_the_nodes(cluster: RayCluster, tmp_path: Path) -> None:
    command = [TUNE, *OP, "--trials", "1000", "--ray", cluster.address]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        until_all_build(process)
        assert len(cluster.builders()) == 2
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate()
    assert process.returncode == 130, rest
    assert "all that was measured is kept" in rest
    assert "Traceback" not in rest
    while cluster.builders():
        pass
    assert trials_of(tmp_path / "edgetune.db")


def test_another_token_is_refused_in_one_line(cluster: RayCluster, tune: Callable[..., Done]) -> None:
    done = tune(*RUN, "--ray", cluster.address, env={"RAY_AUTH_TOKEN": "the-token-of-another-cluster-012345"})
    assert done.status == 2
    assert refusal(done) == (
        f"tune: --ray {cluster.address}: the cluster has another token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, "
        "to its own"
    )


def test_no_token_is_refused_in_one_line(cluster: RayCluster, tune: Callable[..., Done], tmp_path: Path) -> None:
    env = {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    done = tune(*RUN, "--ray", cluster.address, env=env)
    assert done.status == 2
    assert "there is no token: set RAY_AUTH_TOKEN" in refusal(done)


@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_builders_is_refused_in_one_line(tune: Callable[..., Done]) -> None:
    with RayCluster() as bare:
        done = tune(*RUN, "--ray", bare.address)
    assert done.status == 2
    assert refusal(done) == f"tune: --ray {bare.address}: no node of the cluster has a CPU: add one with ray start"
