"""`tune build --stages auto`: measured once, right in any case, and one line where it cannot be."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import result_and_reference, run_tune
from tuner.devices import usable_cpus
from tuner.zoo.builder import GraphBuilder
from tuning_db.store import open_db

GPU = f"opencl:{device_number('pocl')}"
TWO_CORES = pytest.mark.skipif(len(usable_cpus()) < 2, reason="kernels that run at the same time need two cores")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a network of three branches and a database of some trials."""
    folder = tmp_path_factory.mktemp("stages")
    b = GraphBuilder("branches", np.random.default_rng(0))
    x = b.relu(b.conv(b.input("data", (1, 3, 16, 16)), "stem", 16, 3, padding=1))
    ends = [b.relu(b.conv(x, f"branch{n}", 16, n, padding=n // 2)) for n in (1, 3, 5)]
    y = b.dense(b.flatten(b.global_average_pool(b.concat(ends))), "fc", 10)
    (folder / "net.onnx").write_bytes(b.model(y).SerializeToString())
    done = run_tune("model", "net.onnx", "--device", GPU, "--db", "t.db", "--trials", 8, cwd=folder)
    assert done.status == 0, done.err
    return folder


def build(folder: Path, *words: object):
    return run_tune("build", "net.onnx", "--db", "t.db", *words, cwd=folder)


def assert_right(folder: Path, output: str) -> None:
    value, expected = result_and_reference(partial(run_tune, cwd=folder), folder / "net.onnx", output)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", [(GPU,), pytest.param(("cpu", "--threads", 2), marks=TWO_CORES)])
def test_stages_are_measured_once_and_kept(folder: Path, device: tuple) -> None:
    first = build(folder, "--device", *device, "--stages", "auto", "-o", "auto", "--json")
    assert first.status == 0, first.err
    said = first.json()["stages"]
    assert said["finished"]
    assert said["measured"] > 0
    assert said["seconds"] <= said["sequential_seconds"]
    assert_right(folder, "auto")
    again = build(folder, "--device", *device, "--stages", "auto", "-o", "auto", "--json").json()["stages"]
    assert again == {**said, "measured": 0, "cuts": []}
    verified = run_tune("db", "verify", "--db", "t.db", cwd=folder)
    assert verified.status == 0, verified.err
    assert run_tune("db", "stats", "--db", "t.db", cwd=folder).status == 0


def test_an_export_has_the_stages_of_the_database(folder: Path) -> None:
    """They are measured by whichever command comes first. The export's outputs equal the module's."""
    said = build(folder, "--device", GPU, "--stages", "auto", "-o", "auto", "--json").json()["stages"]["stages"]
    with open_db(folder / "t.db", read_only=True) as store:
        known = store.stats().trials
    words = ("export", "net.onnx", "--db", "t.db", "--device", GPU, "--stages", "auto", "-o", "exported", "--json")
    done = run_tune(*words, cwd=folder)
    assert done.status == 0, done.err
    assert done.json()["checked"] == {"equal": True}
    with open_db(folder / "t.db", read_only=True) as store:
        assert store.stats().trials == known
    (described,) = (folder / "exported").glob("*.json")
    groups = [text.count("|") + 1 for text in said if "|" in text and not text.startswith("=")]
    assert json.loads(described.read_text())["stages"] == groups


@pytest.mark.night
def test_merged_kernels_are_tuned_where_asked_for(folder: Path) -> None:
    """Of each two of the three branches, and of all three."""
    words = ("model", "net.onnx", "--device", GPU, "--db", "merged.db", "--trials", 12, "--json")
    plain, merged = run_tune(*words, cwd=folder).json(), run_tune(*words, "--merged", cwd=folder).json()
    more = merged["tasks"][len(plain["tasks"]) :]
    assert [task["name"].count(" + ") for task in more] == [1, 1, 2]  # 5x5 with either of the others is one workload
    attrs = [task["workload"]["attrs"] for task in more]
    assert [(a["kernel"], a["out_channels"]) for a in attrs] == [([3, 3], 32), ([5, 5], 32), ([5, 5], 48)]
    done = run_tune(
        *("build", "net.onnx", "--db", "merged.db", "--device", GPU, "--stages", "auto", "-o", "merged"), cwd=folder
    )
    assert done.status == 0, done.err
    assert_right(folder, "merged")


@pytest.mark.sampled(3)
def test_limits_are_told_with_what_they_cut(folder: Path) -> None:
    done = build(folder, "--device", GPU, "--stages", "auto", "--stage-limits", "2,1", "-o", "limited", "--json")
    assert done.status == 0, done.err
    said = done.json()["stages"]
    assert all(stage.count("|") < 2 for stage in said["stages"])
    assert any("at most 2 groups of 1 operators" in line for line in said["cuts"])
    assert "at most 2 groups of 1 operators" in done.err
    assert_right(folder, "limited")


@pytest.mark.sampled(2)
def test_nothing_is_measured_without_them(folder: Path) -> None:
    done = build(folder, "--device", GPU, "-o", "off", "--json")
    assert done.json()["stages"] is None


def test_a_device_without_stages_gets_the_sequential_module_and_a_line(folder: Path) -> None:
    done = build(folder, "--device", "cpu", "--threads", 1, "--stages", "auto", "-o", "cpu")
    assert done.status == 0, done.err
    lines = [line for line in done.err.splitlines() if "no stages" in line]
    assert len(lines) == 1
    assert "a thread each" in lines[0]
    assert_right(folder, "cpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stages", "auto", "--stage-minutes", 0), "--stage-minutes"),
        (("--stages", "auto", "--stage-limits", "0,3"), "--stage-limits"),
        (("--stages", "auto", "--stage-limits", "3"), "--stage-limits"),
        (("--stages", "on"), "--stages"),
    ],
)
def test_bad_options_are_refused(folder: Path, words: tuple, said: str) -> None:
    done = build(folder, "--device", GPU, "-o", "bad", *words)
    assert done.status == 2
    assert said in done.err
    assert not (folder / "bad").exists()
