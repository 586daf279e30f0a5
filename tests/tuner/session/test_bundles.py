"""What goes into bundles, and what of it never gets there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.board_agent.bundles import FROM, names
from tests.tuner.cli.conftest import run_tune
from tuning_db.record import FailureKind
from tuning_db.store import open_db

LINKER = """#!/bin/sh
# Every second library cannot be made. The first is the kernel that is known to be good.
case "$*" in *[02468].so*) echo "$0: no" >&2; exit 1;; esac
exec {real} "$@"
"""


def linked_by(folder: Path, script: str) -> dict[str, str]:
    """An environment whose linker is a script."""
    real = shutil.which("ld")
    assert real is not None
    (folder / "bin").mkdir()
    (folder / "bin" / "ld").write_text(script.format(real=real))
    (folder / "bin" / "ld").chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:{Path(real).parent}"}


def test_what_cannot_be_built_is_known_at_once_and_not_tried_again(bundle: Path) -> None:
    folder = bundle.parent
    env = linked_by(folder, LINKER)
    made = run_tune("bundle", "make", "tiny.onnx", *FROM, "-o", "one.pyz", "--db", "t.db", cwd=folder, env=env)
    assert made.status == 0, made.err
    with open_db(folder / "t.db") as store:
        trials = list(store.trials())
    assert trials
    assert {t.failure.kind for t in trials if t.failure is not None} == {FailureKind.COMPILE}
    failed = {f"{t.workload.key}/{t.config.key}" for t in trials}
    assert len(failed) == len(trials)
    assert failed.isdisjoint(names(folder / "one.pyz"))
    assert failed | set(names(folder / "one.pyz")) == set(names(bundle))
    again = run_tune("bundle", "make", "tiny.onnx", *FROM, "-o", "two.pyz", "--db", "t.db", cwd=folder)
    assert again.status == 0, again.err
    assert failed.isdisjoint(names(folder / "two.pyz"))


@pytest.mark.sampled(2)
def test_where_nothing_can_be_built_there_is_no_bundle(bundle: Path) -> None:
    folder = bundle.parent
    env = linked_by(folder, LINKER.replace("*[02468].so*", "*k1.so*) ;; *"))
    made = run_tune("bundle", "make", "tiny.onnx", *FROM, "-o", "one.pyz", "--db", "t.db", cwd=folder, env=env)
    assert made.status == 3
    assert "nothing to measure" in made.err.splitlines()[-1]
    assert not (folder / "one.pyz").exists()


def test_a_full_disk_is_no_candidates_fault(bundle: Path) -> None:
    folder = bundle.parent
    env = linked_by(folder, LINKER.replace("$0: no", "$0: No space left on device"))
    made = run_tune("bundle", "make", "tiny.onnx", *FROM, "-o", "one.pyz", "--db", "t.db", cwd=folder, env=env)
    assert (made.status, "set TMPDIR" in made.err) == (2, True)
    assert not (folder / "one.pyz").exists()
    with open_db(folder / "t.db") as store:
        assert not list(store.trials())
