"""`--precision mixed`: chosen by the database, shown, kept in the module, and built again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.support import host_target
from tests.tuner.cli.conftest import Done, run_tune
from tests.tuner.graph.quantised import branching, image, quantise, step_of
from tests.tuner.placement.databases import converted, tuned
from tuner.devices import open_device
from tuner.graph import float_form, fuse, load_onnx
from tuner.module import read_manifest
from tuner.module.manifest import checksum_of
from tuner.placement.conversions import conversions_of
from tuning_db.record import Workload
from tuning_db.store import open_db

SHAPE = (1, 3, 16, 16)
needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


@dataclass(frozen=True)
class Made:
    """A folder with float.onnx, q.onnx, and a database t.db by which the second and third operator, which follow each
    other, are slow in integers. `built` is what the build of `mixed` said."""

    folder: Path
    built: Done

    def tune(self, *words: object) -> Done:
        return run_tune(*words, "--threads", 1, "--db", "t.db", cwd=self.folder)

    def floats(self, module: str) -> list[bool]:
        return [p.in_float for p in read_manifest(self.folder / module).precisions]

    def computed(self, module: str) -> list[str]:
        return [operator.workload.dtype for operator in read_manifest(self.folder / module).operators]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("precision")
    quantise(branching(folder / "float.onnx"), folder / "q.onnx", SHAPE)
    device = open_device("cpu", 1)
    with open_db(folder / "t.db") as store:
        graph = fuse(load_onnx(folder / "q.onnx"), integers=True)
        tuned(store, device, graph, integers=[10, 90, 90, 10, 10], floats=[30, 30, 30, 30, 30])
        converted(store, device, 1e-6, 1e-9)
    words = ("--precision", "mixed", "--threads", 1, "--db", "t.db", "-o", "mixed")
    return Made(folder, run_tune("build", "q.onnx", *words, cwd=folder))


@needs_dot_products
def test_a_build_chooses_says_why_and_computes_what_onnxruntime_computes(made: Made) -> None:
    assert made.built.status == 0, made.built.err
    assert "3 of 5 convolutions and dense layers multiply integers of 8 bits; float32 computes" in made.built.err
    lines = made.built.out.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("Precisions"))) :]
    assert sum("float32 takes less" in line for line in table) == 2
    assert made.floats("mixed") == [False, True, True, False, False]
    assert made.computed("mixed") == [INTEGERS, "float32", "float32", INTEGERS, INTEGERS]
    assert {o.source for o in read_manifest(made.folder / "mixed").operators} == {"device"}
    np.savez(made.folder / "x.npz", x=image(SHAPE, 7))
    done = run_tune("run", "mixed", "--input", "x.npz", "--output", "y.npz", cwd=made.folder)
    assert done.status == 0, done.err
    (wanted,) = onnxruntime.InferenceSession(str(made.folder / "q.onnx")).run(None, {"x": image(SHAPE, 7)})
    with np.load(made.folder / "y.npz") as outputs:
        (found,) = outputs.values()
    assert np.abs(found - wanted).max() < 1.5 * step_of(made.folder / "q.onnx")


@needs_dot_products
def test_a_module_or_a_plan_says_the_precisions_of_the_next_build(made: Made) -> None:
    done = run_tune("build", "q.onnx", "--precision", "mixed", "-o", "again", "--threads", 1, "--json", cwd=made.folder)
    assert done.status == 0, done.err  # without the database: by estimates
    assert [p["source"] for p in done.json()["precisions"]] == ["estimated"] * 5
    given = run_tune(
        "build", "q.onnx", "--precision", made.folder / "mixed", "-o", "g", "--threads", 1, cwd=made.folder
    )
    assert given.status == 0, given.err
    assert made.floats("g") == made.floats("mixed")
    assert made.computed("g") == made.computed("mixed")
    done = made.tune("plan", "q.onnx", "--precision", "mixed", "-o", "p.json")
    assert done.status == 0, done.err
    done = run_tune("build", "q.onnx", "--plan", "p.json", "--db", "t.db", "-o", "planned", cwd=made.folder)
    assert done.status == 0, done.err
    assert made.floats("planned") == made.floats("mixed")
    assert made.computed("planned") == made.computed("mixed")


@needs_dot_products
def test_as_in_the_file_nothing_is_chosen(made: Made) -> None:
    assert made.tune("build", "q.onnx", "-o", "file").status == 0
    assert made.floats("file") == []
    assert made.computed("file") == [INTEGERS] * 5


@needs_dot_products
def test_both_forms_of_each_operator_are_tuned_and_conversions_measured(made: Made) -> None:
    words = ("--precision", "mixed", "--trials", 1, "--threads", 1, "--db", "new.db", "--json")
    done = run_tune("model", "q.onnx", *words, cwd=made.folder)
    assert done.status == 0, done.err
    graph = fuse(load_onnx(made.folder / "q.onnx"), integers=True)
    forms = [form.workload for s in graph.anchors if (form := float_form(s)) is not None]
    both = {w.key for w in (*forms, *(s.workload for s in graph.anchors))}
    assert _tasks(done.json()) == both
    assert "measured 8 conversions between bytes and float32" in done.err
    with open_db(made.folder / "new.db", read_only=True) as store:
        assert conversions_of(store, open_device("cpu", 1)).source == "measured"
    done = run_tune("model", "q.onnx", "--trials", 1, "--threads", 1, "--db", "new.db", "--json", cwd=made.folder)
    assert _tasks(done.json()) == {s.workload.key for s in graph.anchors}


def _tasks(result: dict[str, Any]) -> set[str]:
    return {Workload.from_dict(task["workload"]).key for task in result["tasks"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("float.onnx", "--precision", "mixed"), "is not quantised, as --precision mixed asks: `tune quantize` makes"),
        (("q.onnx", "--precision", "quick"), "--precision quick: is not known; give as-file, mixed or the folder"),
        (("q.onnx", "--precision", "mixed", "--dtype", "float16"), "is for networks in float32"),
        (("q.onnx", "--precision", "mixed", "--plan", "p"), "--plan says in which precision each operator is computed"),
        (("q.onnx", "--precision", "empty"), "not a built module"),
    ],
)
def test_what_does_not_fit_is_refused(made: Made, words: tuple[str, ...], said: str) -> None:
    (made.folder / "empty").mkdir(exist_ok=True)
    done = run_tune("build", *words, "-o", "refused", cwd=made.folder)
    assert done.status == 2, done.err
    assert said in done.error
    assert not (made.folder / "refused").exists()


@needs_dot_products
def test_the_module_of_another_network_is_refused(made: Made) -> None:
    quantise(branching(made.folder / "other.onnx"), made.folder / "other.q.onnx", SHAPE, channels=False)
    done = run_tune("build", "other.q.onnx", "--precision", "mixed", "-o", "other", cwd=made.folder)
    assert done.status == 0, done.err
    done = run_tune("build", "q.onnx", "--precision", "other", "-o", "refused", cwd=made.folder)
    assert "--precision other: was built from another model" in done.error


@needs_dot_products
def test_manifests_of_before_have_no_precisions(made: Made) -> None:
    path = made.folder / "mixed" / "manifest.json"
    text = path.read_text()
    data = json.loads(text)
    assert len(data["precisions"]) == 5
    try:
        del data["precisions"], data["checksum"]
        path.write_text(json.dumps({**data, "checksum": checksum_of(data)}))
        assert read_manifest(path.parent).precisions == ()
    finally:
        path.write_text(text)
