"""A network that ends in non-maximum suppression, from the command line: it may find nothing, and what its operators do
is no multiplying."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.tuner.cli.conftest import Done, run_tune
from tests.tuner.graph.networks import Net
from tests.tuner.graph.test_onnx_vision import detector


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a detector that finds nothing as the module "out", and its operators in t.db."""
    made = tmp_path_factory.mktemp("detector")
    net = Net()
    net.save(made / "net.onnx", *detector(net, 20, 2, 5, 2.0))
    for words in (("model", "net.onnx", "--trials", 8), ("build", "net.onnx", "-o", "out")):
        done = run_tune(*words, "--threads", 1, "--db", "t.db", cwd=made)
        assert done.status == 0, done.err
    return made


def test_outputs_without_an_element_are_shown_as_they_are(folder: Path):
    done = run_tune("run", "out", "--output", "y.npz", cwd=folder)
    assert done.status == 0, done.err
    with np.load(folder / "y.npz") as outputs:
        assert {array.size for array in outputs.values()} == {0}
        rows = [line.split() for line in done.out.splitlines() if line.split()[:1] and line.split()[0] in outputs]
    assert len(rows) == 3
    assert all(row[-3:] == ["-", "-", "-"] for row in rows)


def explained(folder: Path, *words: object) -> Done:
    done = run_tune("explain", *words, "--threads", 1, "--db", "t.db", cwd=folder)
    assert done.status == 0, done.err
    return done


def test_of_several_operators_kernels_and_times_are_listed_with_how_to_name_one(folder: Path):
    shown = explained(folder, "length=20").out.splitlines()
    rows = explained(folder, "length=20", "--json").json()["workloads"]
    assert [row["workload"]["op"] for row in rows] in (["argsort", "compact"], ["compact", "argsort"])
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)
    for row, line in zip(rows, shown[2:4], strict=True):
        assert row["text"] in line
        assert row["config"]["template"] in line
    *words, name = shlex.split(shown[-1].removeprefix("name one in full: "))
    assert words == ["tune", "explain"]
    assert explained(folder, name, "--json").json()["text"] == name
    done = run_tune("explain", "length=20", "--code", "k.s", "--threads", 1, "--db", "t.db", cwd=folder)
    assert done.status == 2
    assert "2 workloads are called so: name one in full" in done.error


def test_what_is_said_of_an_operator_without_multiply_adds_is_true_of_it(folder: Path):
    shown = explained(folder, "argsort").out
    assert "operations of argsort are not counted" in shown
    assert "bytes to move at least" in shown
    assert "no loop of its assembly has multiply-adds" in shown
    assert "library" not in shown
