"""Networks with free axes, through the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.tuner.cli.conftest import Done, everything_under
from tuning_db.store import open_db

Tune = Callable[..., Done]


@pytest.fixture
def free(tiny: Path) -> Path:
    """The tiny network with a free batch, and a database t.db without a trial."""
    open_db(str(tiny.with_name("t.db"))).close()
    model = onnx.load(tiny)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    tiny.write_bytes(model.SerializeToString())
    return tiny


def test_a_module_is_for_the_batch_that_was_given(tune: Tune, free: Path, tmp_path: Path) -> None:
    built = tune("build", free.name, "--batch", 2, "--threads", 1, "--db", "t.db", "-o", "two")
    assert built.status == 0, built.err
    manifest = json.loads((tmp_path / "two" / "manifest.json").read_text())
    assert [manifest[key][0]["shape"] for key in ("inputs", "outputs")] == [[2, 3, 16, 16], [2, 10]]
    ran = tune("run", "two", "--output", "y.npz")
    assert ran.status == 0, ran.err
    with np.load(tmp_path / "y.npz") as outputs:
        assert [array.shape for array in outputs.values()] == [(2, 10)]
    compared = tune("bench", "two", "--against", "ort", "--rounds", 1, "--minutes", 0.005, "--json")
    assert compared.status == 0, compared.err
    assert [peer["name"] for peer in compared.json()["peers"]] == ["ort"]


def test_without_one_it_is_one_and_a_plan_says_its_sizes(tune: Tune, free: Path) -> None:
    said = "the batch of 'data' is free and taken as 1"
    built = tune("build", free.name, "--threads", 1, "--db", "t.db", "-o", "one")
    assert built.status == 0, built.err
    assert built.err.count(said) == 1
    planned = tune("plan", free.name, "--shape", "data=2,3,16,16", "--threads", 1, "--db", "t.db", "-o", "p.json")
    assert planned.status == 0, planned.err
    assert f"tune build {free.name} --shape data=2,3,16,16 --plan p.json" in planned.out.replace("\n", "")
    assert said not in planned.err
    other = tune("build", free.name, "--plan", "p.json", "--db", "t.db", "-o", "other")
    assert other.status == 2
    assert "was made for another model, or for other sizes of its free axes" in other.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--shape", "data"), "--shape data: give an input's name and its sizes, such as --shape x=1,3,224,224"),
        (("--shape", "data=1,x"), "--shape data=1,x: give an input's name and its sizes"),
        (("--shape", "=1,3"), "--shape =1,3: give an input's name and its sizes"),
        (("--shape", "data=1,3,16,17"), "axis 3 is 16 in the file: N x 3 x 16 x 16"),
        (("--batch", 0), "--batch 0: a batch is at least 1"),
    ],
)
def test_sizes_that_cannot_be_used(tune: Tune, free: Path, tmp_path: Path, words: tuple, says: str) -> None:
    before = everything_under(tmp_path)
    for command in (("model",), ("build", "-o", "out"), ("plan", "-o", "p.json")):
        done = tune(command[0], free.name, *command[1:], *words)
        assert done.status == 2
        assert says in done.error
    assert everything_under(tmp_path) == before
