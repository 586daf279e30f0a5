"""`--vendor`: other libraries' kernels measured, planned, built and called; and what happens where they are missing."""

from __future__ import annotations

import json
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.manifests import write_manifest
from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import Done, everything_under, result_and_reference, run_tune
from tests.tuner.tiny_network import write_tiny_network
from tuner.graph import fuse, load_onnx
from tuner.module import load, operator_errors, random_inputs
from tuning_db.store import open_db

ORT = ("--vendor", "onnxruntime")
TEMPLATES = ("vendor.conv2d_onnxruntime", "vendor.dense_onnxruntime")


class Made:
    """A folder with a network, and a database that knows onnxruntime's kernels and no others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, write_tiny_network(folder / "tiny.onnx")

    def tune(self, *words: object) -> Done:
        return run_tune(*words, cwd=self.folder)

    def build(self, output: str, *words: object) -> Done:
        return self.tune("build", self.model.name, "--db", "t.db", "--threads", 1, "-o", output, "--json", *words)

    def manifest(self, output: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / output / "manifest.json").read_text()))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("vendors"))
    only = [word for template in TEMPLATES for word in ("--template", template)]
    done = made.tune("model", made.model.name, "--db", "t.db", "--threads", 1, "--trials", 4, *ORT, *only)
    assert done.status == 0, done.err
    built = made.build("out", *ORT)
    assert built.status == 0, built.err
    assert "kernels: 4 onnxruntime" in built.err
    return made


def test_kernels_of_a_library_are_chosen_and_called(made: Made) -> None:
    import onnxruntime

    manifest = made.manifest("out")
    assert manifest["vendors"] == {"onnxruntime": onnxruntime.__version__}
    assert {o["config"]["template"] for o in manifest["operators"]} == set(TEMPLATES)
    assert {o["source"] for o in manifest["operators"]} == {"device"}
    value, expected = result_and_reference(made.tune, made.model, "out")
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_only_where_asked_for(made: Made) -> None:
    built = made.build("without")
    assert built.status == 0, built.err
    assert made.manifest("without")["vendors"] == {}
    assert not {o["config"]["template"] for o in made.manifest("without")["operators"]} & set(TEMPLATES)


def test_a_plan_with_a_library(made: Made) -> None:
    done = made.tune("plan", made.model.name, "--threads", 1, "--db", "t.db", "-o", "p.json", *ORT)
    assert done.status == 0, done.err
    plan = json.loads((made.folder / "p.json").read_text())
    assert {s["kernel"]["template"] for s in plan["steps"] if "kernel" in s} == set(TEMPLATES)
    built = made.tune("build", made.model.name, "--plan", "p.json", "--db", "t.db", "-o", "planned")
    assert built.status == 0, built.err
    assert made.manifest("planned")["vendors"]
    for step in plan["steps"]:
        if "kernel" in step:
            step["kernel"]["template"] = "vendor.conv2d_mkl"
    (made.folder / "unknown.json").write_text(json.dumps(plan))
    refused = made.tune("build", made.model.name, "--plan", "unknown.json", "--db", "t.db", "-o", "never")
    assert refused.status == 2
    assert "unknown vendor 'mkl'" in refused.error


def test_another_version_is_refused(made: Made) -> None:
    manifest = made.manifest("out")
    kept = json.dumps(manifest)
    try:
        write_manifest(made.folder / "out", {**manifest, "vendors": {"onnxruntime": "0.1"}})
        np.savez(made.folder / "x.npz", data=np.zeros((1, 3, 16, 16), np.float32))
        done = made.tune("run", "out", "--input", "x.npz", "--output", "never.npz")
        assert done.status == 2
        assert "out: calls onnxruntime 0.1, here is" in done.error
    finally:
        (made.folder / "out" / "manifest.json").write_text(kept)


@pytest.mark.parametrize("command", ["model", "plan", "build"])
def test_an_unknown_library(made: Made, command: str) -> None:
    before = everything_under(made.folder)
    output = () if command == "model" else ("-o", "never")
    done = made.tune(command, made.model.name, "--db", "t.db", "--vendor", "mkl", *output)
    assert done.status == 2
    assert done.error.count("\n") <= 1
    assert "unknown vendor 'mkl' (known: onnxruntime, onednn, clblast)" in done.error
    assert everything_under(made.folder) == before


def test_its_operators_are_checked_one_by_one(made: Made) -> None:
    """In a process where the library's templates do not compete."""
    graph = fuse(load_onnx(made.model))
    module = load(made.folder / "out")
    errors = operator_errors(module, graph, random_inputs(module.manifest.inputs, 0))
    assert [e.operator.node for e in errors] == [s.node for s in graph.tuned]
    assert max(e.error for e in errors) < 1e-5


@pytest.mark.night
@pytest.mark.skipif(find_library("clblast") is None, reason="libclblast is not installed")
def test_a_library_on_an_opencl_device(tune, tiny, tmp_path: Path) -> None:
    """Convolutions with groups are left to us."""
    gpu = f"opencl:{device_number('pocl')}"
    words = ("--device", gpu, "--db", "t.db", "--vendor", "clblast")
    only = ("--template", "vendor.conv2d_clblast", "--template", "vendor.dense_clblast", "--template", "gpu.depthwise")
    tuned = tune("model", tiny.name, *words, *only, "--trials", 16)
    assert tuned.status == 0, tuned.err
    with open_db(tmp_path / "t.db", read_only=True) as store:
        assert [t.failure for t in store.trials() if t.failure] == []
    built = tune("build", tiny.name, *words, "-o", "out")
    assert built.status == 0, built.err
    assert "kernels: 1 ours, 3 clblast" in built.err + built.out
    value, expected = result_and_reference(tune, tiny, "out")
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    assert list(json.loads((tmp_path / "out" / "manifest.json").read_text())["vendors"]) == ["clblast"]
