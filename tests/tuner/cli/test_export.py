"""`tune export`: from a model or a module to a library that computes the same, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.manifests import write_manifest
from tests.tuner.cli.conftest import Done, everything_under

_WITHOUT_US = """
import json, sys
sys.path.insert(0, "out")
import numpy as np
from tiny import Network
given = dict(np.load("x.npz"))
np.savez("y.npz", **Network()(given))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_a_model_becomes_a_library(tune: Callable[..., Done], tiny: Path, tmp_path: Path) -> None:
    """The same outputs as the module's, from a process that has NumPy alone. Nothing has been tuned."""
    done = tune("export", tiny.name, "-o", "out", "--json")
    assert done.status == 0, done.err
    assert "there is no edgetune.db here: what comes with edgetune is used" in done.err
    assert not (tmp_path / "edgetune.db").exists()
    result = done.json()
    assert (result["name"], result["folder"]) == ("tiny", "out")
    assert result["library"] == (tmp_path / "out" / "libtiny.so").stat().st_size < 1 << 20
    assert 0 < result["least"] <= result["arena"]
    described = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert described["memory"]["weights"] == (tmp_path / "out" / "tiny.weights").stat().st_size
    np.savez(tmp_path / "x.npz", data=np.random.default_rng(3).standard_normal((1, 3, 16, 16), dtype=np.float32))
    ran = subprocess.run([sys.executable, "-c", _WITHOUT_US], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not {"tvm", "tvm_ffi", "tuner", "onnx"} & set(json.loads(ran.stdout))
    assert tune("build", tiny.name, "-o", "module").status == 0
    assert tune("run", "module", "--input", "x.npz", "--output", "z.npz").status == 0
    with np.load(tmp_path / "y.npz") as made, np.load(tmp_path / "z.npz") as wanted:
        assert {name: made[name].tobytes() for name in made} == {name: wanted[name].tobytes() for name in wanted}


def test_a_database_that_is_named_has_to_be_there(tune: Callable[..., Done], tiny: Path, tmp_path: Path) -> None:
    for command in ("build", "export"):
        done = tune(command, tiny.name, "-o", "out", "--db", "none.db")
        assert done.status == 2
        assert "there is no tuning database at none.db" in done.error
    assert not (tmp_path / "out").exists()


def test_a_module_is_exported_again_over_the_first(tune: Callable[..., Done], exports: Path, tmp_path: Path) -> None:
    shutil.copytree(exports / "tiny.module", tmp_path / "module")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for _ in range(2):
        done = tune("export", "module", "-o", "out", "--name", "classifier")
        assert done.status == 0, done.err
        assert "wrote out: " in done.out
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert "int classifier_run(" in (tmp_path / "out" / "classifier.h").read_text()
    made = subprocess.run(["make", "-s"], cwd=tmp_path / "out", capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    for program in ("./example", "./example-shared"):
        ran = subprocess.run(
            [program, "classifier.weights"], cwd=tmp_path / "out", capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    wrong = subprocess.run(["./example", "Makefile"], cwd=tmp_path / "out", capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "Makefile: the weights are not those of this export\n")


REFUSED = {
    "no module": (["empty"], "empty: not a built module"),
    "a name that is none": (["module", "--name", "7up"], "--name '7up': is no identifier of C and Python"),
    "a keyword": (["module", "--name", "class"], "--name 'class': is no identifier"),
    "built already": (["module", "--batch", "2"], "module: was built already: options of a build"),
    "stages of a module": (["module", "--stages", "auto"], "module: was built already: options of a build"),
    "stages elsewhere": (
        ["net.onnx", "--target", "rpi4", "--stages", "auto"],
        "--stages: they are measured on a device that is here: leave --target or --stages away",
    ),
    "no model": (["missing.onnx"], "missing.onnx: no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tune: Callable[..., Done], exports: Path, tmp_path: Path, case: str) -> None:
    shutil.copytree(exports / "tiny.module", tmp_path / "module")
    (tmp_path / "empty").mkdir()
    before = everything_under(tmp_path)
    words, line = REFUSED[case]
    done = tune("export", *words, "-o", "out")
    assert done.status == 2
    assert line in done.error
    assert everything_under(tmp_path) == before


def test_a_module_of_an_earlier_version(tune: Callable[..., Done], exports: Path, tmp_path: Path) -> None:
    """Its manifest names no program."""
    shutil.copytree(exports / "tiny.module", tmp_path / "module")
    data = json.loads((tmp_path / "module" / "manifest.json").read_text())
    del data["program"], data["objects"]
    write_manifest(tmp_path / "module", data)
    done = tune("export", "module", "-o", "out")
    assert done.status == 2
    assert "module: cannot be exported: " in done.error
    assert not (tmp_path / "out").exists()


def test_no_compiler(tune: Callable[..., Done], exports: Path, tmp_path: Path) -> None:
    shutil.copytree(exports / "tiny.module", tmp_path / "module")
    done = tune("export", "module", "-o", "out", env={"PATH": str(tmp_path)})
    assert done.status == 2
    assert "needs cc or gcc or clang, ar or llvm-ar, objcopy or llvm-objcopy in PATH" in done.error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["module"]
