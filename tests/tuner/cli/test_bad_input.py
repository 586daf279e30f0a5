"""Bad input: one clear line, exit status 2, nothing written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.cli.conftest import everything_under
from tests.tuner.tiny_network import write_tiny_network
from tuning_db.store import open_db

RAY = find_spec("ray") is not None


def _missing(path: Path) -> None:
    del path


def _folder(path: Path) -> None:
    path.mkdir()


def _truncated(path: Path) -> None:
    write_tiny_network(path)
    path.write_bytes(path.read_bytes()[:-100])


def _text(path: Path) -> None:
    path.write_text("this is not a model\n" * 10)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _unknown_operator(path: Path) -> None:
    model = onnx.load(write_tiny_network(path))
    model.graph.node[2].op_type = "Frobnicate"
    path.write_bytes(model.SerializeToString())


def _free_sizes(path: Path) -> None:
    model = onnx.load(write_tiny_network(path))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    path.write_bytes(model.SerializeToString())


def _complex(path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.COMPLEX64, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "complex", values[:1], values[1:])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


MODELS = [
    (_missing, "no such file"),
    (_folder, "is a folder"),
    (_truncated, "truncated"),
    (_text, "not an ONNX model"),
    (_empty, "not an ONNX model"),
    (_unknown_operator, "Frobnicate"),
    (_free_sizes, "--shape data=1,3,224,16"),
    (_complex, "complex64"),
]


@pytest.mark.parametrize(("make", "says"), MODELS, ids=lambda value: getattr(value, "__name__", None))
def test_a_model_that_cannot_be_used(tune, tmp_path, make, says):
    make(tmp_path / "m.onnx")
    before = everything_under(tmp_path)
    done = tune("model", "m.onnx", "--trials", 8)
    assert done.status == 2
    assert "m.onnx" in done.error
    assert says in done.error
    assert done.out == ""
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "gpu"], "unknown device 'gpu': give cpu"),
        (["--device", "opencl:99"], "opencl:99"),
        (["--threads", "4096"], "4096 threads"),
        (["--searcher", "oracle"], "known: annealing, auto, autotvm_ga"),
        (["--db", "missing/t.db"], "missing"),
        (["--db", "mysql://host/name"], "mysql"),
        (["--db", "tiny.onnx"], "not a tuning database"),
        (["--ray", "head"], "--ray head: give HOST:PORT"),
        (["--ray", "ray://head:10001"], "give HOST:PORT"),
        (["--ray", "127.0.0.1:1"], "no cluster can be reached there" if RAY else "pip install 'edgetune[fleet]'"),
    ],
)
def test_an_option_that_cannot_be_used(tune, tiny, tmp_path, words, says):
    before = everything_under(tmp_path)
    done = tune("model", tiny.name, "--trials", 8, *words)
    assert done.status == 2
    assert says in done.error
    assert everything_under(tmp_path) == before


def test_building_checks_the_model_before_it_writes(tune, tmp_path):
    _unknown_operator(tmp_path / "m.onnx")
    before = everything_under(tmp_path)
    done = tune("build", "m.onnx", "-o", "out")
    assert done.status == 2
    assert "Frobnicate" in done.error
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tolerance", "0"], "--tolerance 0: it has to be above 0"),
        (["--input", "none.npz"], "none.npz"),
        (["--input", "tiny.npz"], "'data'"),
    ],
)
def test_what_a_build_is_verified_on_is_checked(tune, tiny, tmp_path, words, says):
    np.savez(tmp_path / "tiny.npz", other=np.ones(3))
    open_db(tmp_path / "edgetune.db").close()
    before = everything_under(tmp_path)
    done = tune("build", tiny.name, "-o", "out", *words)
    assert done.status == 2
    assert says in done.error
    assert everything_under(tmp_path) == before


def test_a_database_of_a_newer_version(tune, tiny, tmp_path):
    open_db(tmp_path / "t.db").close()
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = everything_under(tmp_path)
    for command in (["model", tiny.name], ["build", tiny.name, "-o", "out"], ["db", "stats"]):
        done = tune(*command, "--db", "t.db")
        assert done.status == 2
        assert "newer" in done.error
        assert everything_under(tmp_path) == before


def test_a_damaged_database(tune, tiny, tmp_path):
    database = tmp_path / "t.db"
    open_db(database).close()
    database.write_bytes(database.read_bytes()[:5000])
    done = tune("model", tiny.name, "--db", "t.db")
    assert done.status == 2
    assert "truncated" in done.error


@pytest.fixture
def mounted(tmp_path):
    """A small file system of its own; the test is skipped where mounting is not allowed."""
    point = tmp_path / "mounted"
    point.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "edgetune-test", str(point)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed in this container")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def _read_only(point: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)


@pytest.mark.parametrize(
    "words",
    [
        ["model", "tiny.onnx", "--trials", "8", "--db", "mounted/t.db"],
        ["build", "tiny.onnx", "-o", "mounted/out"],
        ["zoo", "squeezenet1.0", "-o", "mounted/m.onnx"],
        ["op", "dense", "--shape", "1,16,16", "--trials", "1", "--db", "mounted/t.db"],
    ],
    ids=lambda words: words[0],
)
def test_a_read_only_folder(tune, tiny, mounted, words):
    _read_only(mounted)
    before = everything_under(tiny.parent)
    done = tune(*words)
    assert done.status == 2
    assert "mounted" in done.error
    assert everything_under(tiny.parent) == before


@pytest.mark.parametrize(
    "words",
    [
        ["zoo", "squeezenet1.0", "-o", "mounted/m.onnx"],
        ["build", "tiny.onnx", "-o", "mounted/out"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.usefixtures("tiny")
def test_a_full_disk(tune, mounted, words):
    (mounted / "ballast").write_bytes(b"x" * 390_000)
    open_db(mounted.parent / "edgetune.db").close()
    before = everything_under(mounted)
    done = tune(*words)
    assert done.status == 2
    assert "mounted" in done.error
    assert "No space left" in done.error
    assert everything_under(mounted) == before


def test_a_disk_that_fills_up_while_tuning_keeps_what_was_measured(tune, tiny, mounted):
    (mounted / "ballast").write_bytes(b"x" * 150_000)
    done = tune("model", tiny.name, "--trials", 400, "--db", "mounted/t.db")
    assert done.status == 2
    last = done.err.splitlines()[-1]
    assert last.startswith("tune: ")
    assert "full" in last
    (mounted / "ballast").unlink()
    assert tune("db", "verify", "--db", "mounted/t.db").status == 0
