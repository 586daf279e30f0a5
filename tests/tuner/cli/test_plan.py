"""`tune plan` and `tune build --plan`: plans of real devices, edited ones, and those that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import Done, everything_under, result_and_reference, run_tune

GPU = f"opencl:{device_number('pocl')}"
BOTH = ("--device", f"{GPU},cpu", "--threads", 1, "--db", "t.db")


@dataclass(frozen=True)
class Made:
    """A folder with a network, a database and a plan, p.json."""

    folder: Path
    model: Path
    said: dict[str, Any]

    def tune(self, *words: object) -> Done:
        return run_tune(*words, cwd=self.folder)

    def plan(self) -> dict[str, Any]:
        """To be edited."""
        return json.loads(json.dumps(self.said))

    def build(self, plan: str, output: str, *words: object) -> Done:
        return self.tune("build", self.model.name, "--plan", plan, "--db", "t.db", "-o", output, *words)

    def assert_right(self, output: str) -> None:
        value, expected = result_and_reference(self.tune, self.model, output)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tuned_on_pocl: Path) -> Made:
    """Of the tiny network on PoCL and the CPU, kernels tuned on both a little."""
    folder = tmp_path_factory.mktemp("plan")
    shutil.copytree(tuned_on_pocl, folder, dirs_exist_ok=True)
    model = folder / "tiny.onnx"
    tuned = run_tune("model", model.name, "--threads", 1, "--db", "t.db", "--trials", 6, cwd=folder)
    assert tuned.status == 0, tuned.err
    done = run_tune("plan", model.name, *BOTH, "-o", "p.json", "--json", cwd=folder)
    assert done.status == 0, done.err
    said = json.loads((folder / "p.json").read_text())
    assert {k: v for k, v in done.json().items() if k != "output"} == said
    return Made(folder, model, said)


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_a_plan_is_made_kept_and_built(made: Made) -> None:
    plan = made.said
    assert plan["optimal"]
    assert plan["measured"] > 0
    assert plan["seconds"] <= min(s for s in plan["alone"].values() if s is not None)
    parts = sum(step["seconds"] for step in plan["steps"]) + sum(move["seconds"] for move in plan["moves"])
    assert plan["seconds"] == pytest.approx(parts)
    again = made.tune("plan", made.model.name, *BOTH, "-o", "q.json", "--json")
    assert again.json()["measured"] == 0
    assert "no plan takes less" in again.err
    assert again.json()["steps"] == plan["steps"]
    built = made.build("p.json", "out", "--json")
    assert built.status == 0, built.err
    assert built.json()["devices"] == [GPU, "cpu"]
    made.assert_right("out")


@pytest.mark.sampled(6)
def test_an_edited_plan_is_built_as_it_says(made: Made) -> None:
    """Every step on the other device than the one before it, plain steps in another layout, no kernel said."""
    plan = made.plan()
    for i, step in enumerate(plan["steps"]):
        step["device"] = (GPU, "cpu")[i % 2]
        step["kernel" if "kernel" in step else "block"] = None if "kernel" in step else 8
    (made.folder / "edited.json").write_text(json.dumps(plan))
    built = made.build("edited.json", "edited", "--json")
    assert built.status == 0, built.err
    tuned = [i for i, step in enumerate(plan["steps"]) if "kernel" in step]
    assert [o["device"] for o in built.json()["operators"]] == [i % 2 for i in tuned]
    made.assert_right("edited")


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        plan = json.loads(text)
        change(plan)
        return json.dumps(plan)

    return edit


def first(plan: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(step for step in plan["steps"] if kind in step)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text[: len(text) // 2], "is not a plan of `tune plan`"),
        (lambda _: "[]", "is not a plan of `tune plan`"),
        (edited(lambda p: p.update(format=9)), "has the format 9"),
        (edited(lambda p: p["model"].update(sha256="0")), "was made for another model"),
        (edited(lambda p: p["devices"][0].update(name="opencl:9")), "opencl:9"),
        (edited(lambda p: p["devices"][0]["key"].update(model="mali-t860")), "was made for opencl:"),
        (edited(lambda p: p["steps"].pop()), "its steps are not those of the network"),
        (edited(lambda p: p["steps"][0].update(device="cuda:0")), "no device 'cuda:0' in the plan"),
        (edited(lambda p: first(p, "block").update(block=-1)), "block -1 is not a number of channels"),
        (edited(lambda p: first(p, "kernel").update(kernel={"template": "x"})), "has no template and knobs"),
        (edited(lambda p: first(p, "kernel").update(kernel={"template": "x", "knobs": {}})), "is not valid for it on"),
    ],
)
def test_a_plan_that_does_not_fit(made: Made, edit: Callable[[str], str], says: str) -> None:
    (made.folder / "bad.json").write_text(edit((made.folder / "p.json").read_text()))
    before = everything_under(made.folder)
    done = made.build("bad.json", "never")
    assert done.status == 2
    assert says in done.error
    assert everything_under(made.folder) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "{model}", "--device", "cpu,cpu", "-o", "p.json"), "give devices that differ"),
        (("plan", "{model}", "--device", "cpu,opencl:99", "-o", "p.json"), "opencl:99"),
        (("plan", "{model}", "--db", "none.db", "-o", "p.json"), "there is no tuning database"),
        (("plan", "{model}", "-o", "nowhere/p.json"), "does not exist"),
        (("build", "{model}", "--plan", "none.json", "-o", "out"), "none.json: cannot be read"),
    ],
)
def test_what_cannot_be_planned(tune, tiny, tmp_path: Path, words, says) -> None:
    before = everything_under(tmp_path)
    done = tune(*(word.format(model=tiny.name) for word in words))
    assert done.status == 2
    assert says in done.error
    assert everything_under(tmp_path) == before


def test_a_plan_and_a_device_exclude_each_other(made: Made) -> None:
    done = made.build("p.json", "never", "--device", GPU)
    assert done.status == 2
    assert "leave --device and --fallback away" in done.error
