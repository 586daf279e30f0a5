"""`tune replay`: searchers compared on recorded spaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuner.cli.conftest import Done
from tests.tuner.measure.test_recorded import made
from tuner.errors import SearchFailed, TuneError
from tuner.measure.replay.recorded import write
from tuner.search.model_guided import ModelGuidedSearcher
from tuner.session.replaying import replay
from tuning_db.record import Config

Tune = Callable[..., Done]


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.jsonl.xz"
    write(made(400), path)
    return path


def test_searchers_are_compared_and_the_better_one_is_seen(tune: Tune, space: Path) -> None:
    done = tune("replay", space, "--searcher", "random", "--searcher", "auto", "--trials", 120, "--seeds", 3, "--json")
    assert done.status == 0
    chance, auto = done.json()["rows"]
    assert (chance["searcher"], auto["searcher"]) == ("random", "auto")
    assert auto["trials_to"]["0.95"] < (chance["trials_to"]["0.95"] or 121)
    assert auto["share_at_end"] >= chance["share_at_end"]
    assert auto["seconds_to"]["0.9"] == pytest.approx(0.3 * auto["trials_to"]["0.9"])
    again = tune("replay", space, "--searcher", "auto", "--trials", 120, "--seeds", 3, "--json").json()["rows"][0]
    assert again["trials_to"] == auto["trials_to"]
    assert "never" in tune("replay", space, "--searcher", "random", "--trials", 1, "--seeds", 1).out


def test_what_cannot_be_replayed_is_refused(tune: Tune, space: Path, tmp_path: Path) -> None:
    done = tune("replay", tmp_path / "gone.jsonl.xz")
    assert (done.status, "gone.jsonl.xz: No such file" in done.error) == (2, True)
    done = tune("replay", space, "--searcher", "genetic:colour=red")
    assert (done.status, "genetic has no option 'colour'" in done.error) == (2, True)
    space.write_bytes(space.read_bytes()[:200])
    done = tune("replay", space)
    assert (done.status, "not a recorded space, or cut short" in done.error) == (2, True)


def test_a_library_that_fails_is_one_line_or_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Config]:
        raise SearchFailed("xgboost: out of cheese")

    monkeypatch.setattr(ModelGuidedSearcher, "propose", fail)
    with pytest.raises(TuneError, match=r"^model_guided failed: xgboost: out of cheese$"):
        replay(made(200), "model_guided", 0, trials=20)
    assert replay(made(200), "auto", 0, trials=20).failures == {"model": "xgboost: out of cheese"}


def test_a_library_that_cannot_be_loaded_is_one_line_or_a_remark(space: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "xgboost"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('libgomp.so.1 is missing')")

    def replayed(searcher: str) -> subprocess.CompletedProcess[str]:
        script = "import sys; from tuner.cli.main import execute; sys.exit(execute(sys.argv[1:]))"
        call = [sys.executable, "-c", script, "replay", str(space), "--searcher", searcher, "--seeds", "1"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(broken.parent), *sys.path])}
        return subprocess.run(call, env=environment, capture_output=True, text=True)

    alone, shared = replayed("model_guided"), replayed("auto")
    assert alone.returncode == 1
    assert alone.stderr.splitlines()[-1] == "tune: model_guided failed: xgboost: libgomp.so.1 is missing"
    assert (shared.returncode, "went on without model" in shared.stderr) == (0, True)


def test_a_searcher_of_a_plugin_is_compared(tune: Tune, space: Path, tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(
        "from tuner.search.grid import GridSearcher\n"
        "from tuner.search.registry import register\n"
        "class Last(GridSearcher):\n    pass\n"
        "register('last', Last)\n"
    )
    words = ("--plugin", "last.py", "--searcher", "last", "--searcher", "grid", "--trials", 60, "--seeds", 1, "--json")
    last, grid = tune("replay", space, *words).json()["rows"]
    assert (last["searcher"], last["trials_to"]) == ("last", grid["trials_to"])
    assert "no searcher" in tune("replay", space, "--searcher", "last").error
