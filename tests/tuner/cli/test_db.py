"""`tune db`: each command on real databases, for people and with --json; what is refused leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

import vision_ops  # noqa: F401  (registers the templates)
from templates.template import all_templates
from tests.tuner.interop.logs import CUDA, SPATIAL_PACK, TRANSPOSED, lines
from tests.tuning_db.backends import new_database
from tests.tuning_db.made import CONV, NOON, trial
from tuner.cli import db
from tuner.cli.common import DEFAULT_DB
from tuner.errors import BadInput
from tuning_db import logs
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import DatabaseError, open_db

DENSE = Workload("dense", {"rows": 1, "in_features": 512, "out_features": 10})
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`tune db WORDS...` in a folder of the test's own: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    command = typer.main.get_command(db.app)

    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = command.main(args=list(words), prog_name="db", standalone_mode=False)
        out, err = capfd.readouterr()
        return status if isinstance(status, int) else 0, out, err

    return call


def as_json(done: tuple[int, str, str]) -> dict[str, Any]:
    status, out, _ = done
    assert status == 0
    (line,) = out.splitlines()
    return json.loads(line)


def filled(name: str, made: list[Trial]) -> None:
    with open_db(name) as store:
        store.add_many(made)


def content(name: str) -> list[Trial]:
    with open_db(name, read_only=True) as store:
        return list(store.trials())


def test_stats(run: Run) -> None:
    filled("t.db", [trial(1), trial(2, None), trial(3, workload=DENSE)])
    expected = {
        "trials": 3,
        "failures": 1,
        "failures_by_kind": {"compile": 1},
        "workloads": 2,
        "devices": 1,
        "in_flight": 0,
    }
    assert as_json(run("stats", "--db", "t.db", "--json")) == expected
    status, out, err = run("stats", "--db", "t.db")
    assert (status, err) == (0, "")
    assert re.search(r"trials +3", out)
    assert re.search(r"compile +1", out)


def test_the_default_database_and_urls(run: Run, tmp_path: Path) -> None:
    filled("edgetune.db", [trial(1)])
    assert as_json(run("stats", "--json"))["trials"] == 1
    assert as_json(run("stats", "--json", "--db", f"sqlite:///{tmp_path}/edgetune.db"))["trials"] == 1


def test_best(run: Run) -> None:
    filled("t.db", [trial(1, 2e-3), trial(2, 1e-3), trial(3, 5e-4, error=0.5), trial(4, 7e-3, workload=DENSE)])
    found = as_json(run("best", "--db", "t.db", "--json"))["best"]
    assert [(b["workload"], b["config"]["knobs"], b["seconds"]) for b in found] == [
        (json.loads(CONV.key), {"tile": 2}, 1e-3),
        (json.loads(DENSE.key), {"tile": 4}, 7e-3),
    ]
    (loose, _) = as_json(run("best", "--db", "t.db", "--json", "--tolerance", "1"))["best"]
    assert loose["config"]["knobs"] == {"tile": 3}
    (dense,) = as_json(run("best", "--db", "t.db", "--json", "--op", "dense"))["best"]
    assert dense["workload"]["op"] == "dense"
    _, out, _ = run("best", "--db", "t.db")
    assert re.search(r" 1,000 +conv2d .* direct +1\.0e-06 .* tile=2", out)


def test_export_and_import(run: Run) -> None:
    made = [trial(1), trial(2, None)]
    filled("t.db", made)
    assert as_json(run("export", "log.jsonl", "--db", "t.db", "--json")) == {"file": "log.jsonl", "trials": 2}
    status, out, err = run("export", "--db", "t.db")
    assert (status, out, err) == (0, Path("log.jsonl").read_text(), "")
    assert as_json(run("import", "log.jsonl", "--db", "new.db", "--json")) == {"added": 2, "known": 0, "bad": []}
    assert as_json(run("import", "log.jsonl", "--db", "new.db", "--json")) == {"added": 0, "known": 2, "bad": []}
    assert content("new.db") == made


def test_export_of_the_bests(run: Run) -> None:
    current = next(t for t in all_templates() if t.name == "cpu.conv2d_direct")
    slow, fast, old = (replace(trial(n, n * 1e-3), config=Config(current.name, {"tile": n})) for n in (3, 2, 1))
    made = [replace(t, template_version=current.version) for t in (slow, fast)]
    filled("t.db", [*made, replace(old, template_version=current.version + 1), trial(7, 1e-6), trial(8, None)])
    assert as_json(run("export", "bests.jsonl.xz", "--bests", "--db", "t.db", "--json"))["trials"] == 1
    run("import", "bests.jsonl.xz", "--db", "new.db")
    assert content("new.db") == [made[1]]  # of a template that is there, in the version that it has


def test_import_skips_bad_lines_and_says_which(run: Run) -> None:
    Path("log.jsonl").write_text("nonsense\n" * 30 + logs.line_of(trial(1)) + "\n{}\n")
    result = as_json(run("import", "log.jsonl", "--db", "t.db", "--json"))
    assert result["added"] == 1
    assert [bad["line"] for bad in result["bad"]] == [*range(1, 31), 32]
    status, out, err = run("import", "log.jsonl", "--db", "t.db")
    assert status == 0
    assert "0 added, 1 known, 31 bad lines" in out
    assert "log.jsonl:1: it is not JSON" in err
    assert "(29 more lines like it)" in err
    assert "log.jsonl:32: its format is None" in err
    assert content("t.db") == [trial(1)]


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (("stats", "--db", "none.db"), DatabaseError, "no tuning database at none.db"),
        (("verify", "--db", "notes.txt"), DatabaseError, "notes.txt is not a tuning database"),
        (("import", "none.jsonl", "--db", "new.db"), BadInput, "no such file"),
        (("import", "notes.txt", "--db", "new.db"), BadInput, "holds no trial; line 1: it is not JSON"),
        (("import", "good.jsonl", "notes.txt", "--db", "new.db"), BadInput, "notes.txt: holds no trial"),
        (("import", "good.jsonl", "--db", "no/new.db"), DatabaseError, "the folder no does not exist"),
        (("export", "no/log.jsonl", "--db", "t.db"), BadInput, "does not exist"),
        (("export", "t.db", "--db", "t.db"), BadInput, "is the database itself"),
        (("export", "folder", "--db", "t.db"), BadInput, "not a plain file"),
        (("export", "--json", "--db", "t.db"), BadInput, "give a FILE"),
        (("export", "log.jsonl", "--db", "none.db"), DatabaseError, "no tuning database"),
        (("merge", "none.db", "--db", "new.db"), DatabaseError, "no tuning database at none.db"),
        (("merge", "t.db", "--db", "t.db"), BadInput, "is the database to merge into"),
        (("merge", "t.db", "notes.txt", "--db", "new.db"), DatabaseError, "notes.txt is not"),
        (("prune", "--db", "t.db"), BadInput, "nothing says which"),
        (("prune", "--failures", "--db", "none.db"), DatabaseError, "no tuning database"),
        (("prune", "--older-than", "1e300", "--db", "t.db"), BadInput, "no trial can be that old"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_and_writes_nothing(
    run: Run, tmp_path: Path, words: tuple[str, ...], error: type[Exception], says: str
) -> None:
    filled("t.db", [trial(1)])
    Path("notes.txt").write_text("my notes\n")
    Path("good.jsonl").write_text(logs.line_of(trial(5)) + "\n")
    Path("folder").mkdir()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    with pytest.raises(error, match=re.escape(says)):
        run(*words)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    assert os.listdir("folder") == []


def test_merge(run: Run) -> None:
    filled("a.db", [trial(1), trial(2)])
    filled("b.db", [trial(2), trial(3)])
    assert as_json(run("merge", "a.db", "b.db", "--db", "all.db", "--json")) == {"added": 3, "known": 1}
    assert content("all.db") == [trial(1), trial(2), trial(3)]
    assert content("b.db") == [trial(2), trial(3)]


def test_verify(run: Run) -> None:
    filled("t.db", [trial(1), trial(2)])
    assert as_json(run("verify", "--db", "t.db", "--json")) == {"trials": 2, "problems": []}
    with closing(sqlite3.connect("t.db")) as connection, connection:
        connection.execute("UPDATE trials SET seconds = 1 WHERE id = 2")
    status, out, err = run("verify", "--db", "t.db", "--json")
    assert status == 4
    assert json.loads(out)["problems"] == ["trial 2: its column seconds does not match its content"]
    assert "trial 2" in err
    status, out, _ = run("verify", "--db", "t.db")
    assert (status, out) == (4, "t.db: 1 problems\n")


def test_prune(run: Run) -> None:
    recent = (datetime.now(UTC) - NOON) / timedelta(minutes=1)
    made = [
        trial(1, minute=recent),
        trial(2, 2e-3, minute=recent),
        trial(3, None, minute=recent),
        trial(4, minute=recent - 2000),
    ]
    filled("t.db", made)
    dry = as_json(run("prune", "--failures", "--dry-run", "--db", "t.db", "--json"))
    assert dry == {"removed": 1, "kept": 3, "dry_run": True}
    assert len(content("t.db")) == 4
    assert as_json(run("prune", "--failures", "--db", "t.db", "--json"))["removed"] == 1
    old = as_json(run("prune", "--older-than", "1", "--db", "t.db", "--json"))
    assert (old["removed"], [t.config["tile"] for t in content("t.db")]) == (1, [1, 2])
    status, out, _ = run("prune", "--keep-best", "1", "--db", "t.db")
    assert (status, out) == (0, "t.db: 1 trials removed, 1 kept\n")
    assert content("t.db") == made[:1]


def test_a_log_of_autotvms_is_imported_and_what_cannot_be_is_said_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.log").write_bytes(lines(CUDA, TRANSPOSED, SPATIAL_PACK, TRANSPOSED))
    status, out, err = run("import", "old.log")
    assert status == 0
    assert "2 added, 0 known, 2 bad lines" in out
    assert "old.log:3: conv2d_transpose_nchw.cuda: no operator of ours (1 more lines like it)" in err
    again = as_json(run("import", "old.log", "--json"))
    assert (again["added"], again["known"], [b["line"] for b in again["bad"]]) == (0, 2, [3, 5])
    with open_db(tmp_path / DEFAULT_DB) as store:
        assert {d.model for d in store.devices()} == {"tx2", "rk3588"}
    assert as_json(run("best", "--json")) == {"best": []}  # nobody has checked those kernels
    assert as_json(run("verify", "--json"))["problems"] == []
    run("export", "ours.jsonl")
    assert as_json(run("import", "ours.jsonl", "--json", "--db", "other.db"))["added"] == 2


def test_a_log_of_autotvms_with_nothing_for_us_makes_no_database(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.log").write_bytes(lines(TRANSPOSED))
    with pytest.raises(BadInput, match="holds no trial; line 2: conv2d_transpose_nchw"):
        run("import", "old.log")
    assert [path.name for path in tmp_path.iterdir()] == ["old.log"]


def test_a_folder_that_is_no_database_of_metaschedules_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="folder: is a folder without database_workload"):
        run("import", "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_every_command_works_on_a_teams_database(run: Run, tmp_path: Path) -> None:
    url = new_database("postgresql", tmp_path / "unused")
    filled("a.db", [trial(1, 2e-3), trial(2, None)])
    run("export", "log.jsonl.xz", "--db", "a.db")
    assert as_json(run("import", "log.jsonl.xz", "--db", url, "--json"))["added"] == 2
    filled("b.db", [trial(2, None), trial(3, 1e-3)])
    assert as_json(run("merge", "b.db", "--db", url, "--json")) == {"added": 1, "known": 1}
    assert as_json(run("stats", "--db", url, "--json"))["trials"] == 3
    (best,) = as_json(run("best", "--db", url, "--json"))["best"]
    assert best["config"]["knobs"] == {"tile": 3}
    assert as_json(run("verify", "--db", url, "--json")) == {"trials": 3, "problems": []}
    assert as_json(run("prune", "--failures", "--db", url, "--json"))["removed"] == 1
    assert as_json(run("export", "back.jsonl.gz", "--db", url, "--json"))["trials"] == 2
    assert as_json(run("merge", url, "--db", "c.db", "--json")) == {"added": 2, "known": 0}
    assert content("c.db") == content(url) == [trial(1, 2e-3), trial(3, 1e-3)]


def test_a_compressed_log_that_was_cut_is_imported_as_far_as_it_goes(run: Run, tmp_path: Path) -> None:
    filled("t.db", [trial(tile) for tile in range(50)])
    run("export", "log.jsonl.gz", "--db", "t.db")
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(log.read_bytes()[:-200])
    status, _, err = run("import", "log.jsonl.gz", "--db", "new.db")
    assert status == 0
    assert "the compressed file cannot be read from here on" in err
    assert 0 < len(content("new.db")) < 50
    assert content("new.db") == content("t.db")[: len(content("new.db"))]


def test_withdraw(run: Run) -> None:
    """It is no best any more, here and where its note comes to, and not when it is measured again either."""
    filled("t.db", [trial(1, 1e-3), trial(2, 2e-3)])
    fast, slow = (trial(n).config for n in (1, 2))
    (best,) = as_json(run("best", "--db", "t.db", "--json"))["best"]
    assert best["config"]["knobs"] == {"tile": 1}
    done = run("withdraw", best["name"], "--why", "it burns", "--db", "t.db")
    assert (done[0], "withdrawn" in done[1], "is the best now" in done[1]) == (0, True, True)
    filled("t.db", [trial(1, 5e-4, minute=9)])
    assert run("prune", "--failures", "--older-than", "0", "--dry-run", "--db", "t.db")[0] == 0
    assert run("prune", "--failures", "--db", "t.db")[0] == 0
    assert run("export", "all.jsonl", "--db", "t.db")[0] == 0
    filled("other.db", [trial(1, 4e-4, minute=3), trial(2, 9e-3, minute=4)])
    assert run("import", "all.jsonl", "--db", "other.db")[0] == 0
    for name in ("t.db", "other.db"):
        with open_db(name) as store:
            found = store.best(CONV, trial(1).device)
            assert found is not None
            assert (found.config, found.config != fast) == (slow, True)
            (note,) = [t for t in store.trials() if t.failure and t.failure.kind == "withdrawn"]
            assert note.failure is not None
            assert note.failure.message == "it burns"


@pytest.mark.parametrize("name", ["", "x", "0123456789ab", "0123", "0123456789abcdef0123"])
def test_withdraw_what_is_not_there(run: Run, name: str) -> None:
    filled("t.db", [trial(1)])
    with pytest.raises(DatabaseError, match="tune db best"):
        run("withdraw", name, "--db", "t.db")
    assert len(content("t.db")) == 1


@pytest.mark.parametrize(
    "damage",
    ["created = 'soon'", "seconds = 'fast'", "searcher = x'ff'", "times = '[\"a\"]'", "template_version = '[1]'"],
)
def test_a_record_that_cannot_be_read_costs_itself_alone(run: Run, damage: str) -> None:
    filled("t.db", [trial(1, 1e-3), trial(2, 2e-3), trial(3, 3e-3)])
    with closing(sqlite3.connect("t.db")) as connection, connection:
        connection.execute(f"UPDATE trials SET {damage} WHERE id = 1")
    (best,) = as_json(run("best", "--db", "t.db", "--json"))["best"]
    assert best["config"]["knobs"] == {"tile": 2}
    status, _, err = run("export", "rest.jsonl", "--db", "t.db")
    assert (status, "1 records cannot be read: `tune db verify` says why" in err) == (0, True)
    assert len(Path("rest.jsonl").read_text().splitlines()) == 2
    status, _, err = run("verify", "--db", "t.db")
    assert (status, "trial 1:" in err) == (4, True)
