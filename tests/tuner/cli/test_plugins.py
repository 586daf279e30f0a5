"""Templates of a user's own on the command line: found, measured, and every way of going wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.cli.conftest import run_tune

PLUGIN = """
import os
from templates.space import Knob, Space
from templates.template import PLAIN, AnchorTemplate, Layouts, register



class Broken(AnchorTemplate):
    name, op = "user.broken", "dense"

    def layouts(self, workload, target):
        return Layouts(PLAIN, PLAIN)

    def space(self, workload, target):
        return Space(self.name, (Knob("k", (1, 2, 3)),), seeds=({},))

    def pack_weight(self, workload, target, config, weight):
        return weight

    def prim_func(self, workload, target, config):
        os.abort() if config["k"] == 2 else None
        raise ValueError("this template is broken")


register(Broken())
"""
OP = ("op", "dense", "--shape", "1,32,16", "--threads", 1, "--db", "t.db", "--trials", 6)


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    return tmp_path


@pytest.mark.usefixtures("plugin")
def test_all_candidates_failing_is_exit_3_with_the_first_error(tune):
    done = tune(*OP, "--plugin", "mine.py", "--template", "user.broken")
    assert done.status == 3
    assert done.err.strip().splitlines()[-1].startswith("tune: nothing could be measured (3 candidates)")
    assert "this template is broken" in done.err
    assert "Traceback" not in done.err
    assert tune("db", "stats", "--db", "t.db", "--json").json()["failures"] == 3


@pytest.mark.usefixtures("plugin")
def test_a_broken_template_costs_only_its_own_trials(tune):
    done = tune(*OP[:-1], 40, "--searcher", "random", "--plugin", "mine.py", "--json")
    assert done.status == 0, done.err
    (task,) = done.json()["tasks"]
    assert task["failures"]["compile"] == 3
    assert task["best_config"]["template"] == "cpu.dense"


def test_a_template_that_cannot_make_its_space_ends_the_run_in_one_line(tune, tmp_path):
    broken = PLUGIN.replace("        return Space(", "        knobs = 1 // 0\n        return Space(")
    (tmp_path / "mine.py").write_text(broken)
    line = broken.splitlines().index("        knobs = 1 // 0") + 1
    done = tune(*OP, "--plugin", "mine.py")
    assert done.status == 2
    (*_, said) = done.err.strip().splitlines()
    assert said.startswith("tune: template user.broken fails to make its space: ZeroDivisionError: ")
    assert said.endswith(f" (mine.py:{line})")
    assert "Traceback" not in done.err


def test_a_template_that_cannot_say_whether_it_leads_does_so_too(tune, tmp_path):
    method = "    def leads(self, target):\n        return True\n\n    def space("
    (tmp_path / "mine.py").write_text(PLUGIN.replace("    def space(", method, 1))
    done = tune(*OP, "--plugin", "mine.py")
    assert done.status == 2
    (*_, said) = done.err.strip().splitlines()
    assert said.startswith("tune: template user.broken fails to make its space: TypeError: ")
    assert "leads() takes 2 positional arguments but 3 were given" in said


def test_nothing_beside_a_plugin_takes_another_modules_place(tune, tmp_path):
    """Neither in the command nor in the processes that build."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text(PLUGIN)
    for name in ("templates", "tuner", "numpy", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('this module is in the way')")
    done = tune(*OP[:-1], 9, "--searcher", "random", "--plugin", "mine/mine.py", "--json")
    assert done.status == 0, done.err
    assert "in the way" not in done.err


@pytest.mark.parametrize("name", ["templates", "random"])
def test_a_plugin_with_another_modules_name_is_refused(tune, tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"{name}.py").write_text(PLUGIN)
    done = tune(*OP, "--plugin", f"mine/{name}.py")
    assert done.status == 2
    assert done.err.strip().endswith(f"there is another module {name!r}; give the file another name")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--plugin", "nowhere.py"), "nowhere.py: no such file"),
        (("--plugin", "no.such.module"), "--plugin no.such.module: cannot be imported"),
        (("--template", "cpu.nothing"), "cpu.nothing"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(tune, tmp_path, options, says):
    done = tune(*OP, *options)
    assert done.status == 2
    assert len(done.err.strip().splitlines()) == 1
    assert says in done.err
    assert not (tmp_path / "t.db").exists()


def test_an_interrupt_that_a_library_makes_another_error_of_is_one(tmp_path: Path) -> None:
    """TVM does so with what its callbacks raise."""
    (tmp_path / "mine.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(5)\n"
        "except KeyboardInterrupt:\n"
        "    raise RuntimeError('a callback failed')\n"
    )
    done = run_tune(*OP[:-1], 4, "--plugin", "mine.py", "--db", "t.db", cwd=tmp_path)
    assert done.status == 130, done.err
    assert "callback" not in done.err
