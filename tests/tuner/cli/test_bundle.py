"""A device that cannot be reached: facts come, a bundle goes, results come, and are checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.board_agent.bundles import FROM, names, on_the_device
from tests.board_agent.thin import thin_python
from tests.tuner.cli.conftest import TUNE, Done, run_tune


def imported(bundle: Path, results: str = "r.zip", *words: object) -> Done:
    return run_tune("bundle", "import", bundle, results, *words, cwd=bundle.parent)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["python3", "tune bundle run"])
def test_there_and_back_twice_in_one_folder(bundle: Path, how: str) -> None:
    """With the names that are the default: the second bundle goes on where the first ended."""
    folder, tried = bundle.parent, set[str]()
    bundle.rename(folder / "bundle.pyz")
    for again in (True, False):
        there = names(folder / "bundle.pyz")
        if how == "python3":
            done = on_the_device("bundle.pyz", cwd=folder)
            assert done.returncode == 0, done.stderr
            assert done.stdout.rstrip().endswith(
                "tune bundle import bundle.pyz results.zip"
            )  # which is what is run now
        else:
            found = run_tune("bundle", "run", "bundle.pyz", "--json", cwd=folder).json()
            assert found == {"file": "results.zip", "candidates": len(there), "failed": 0, "measured": len(there)}
        assert not list(folder.glob("*.partial"))
        first = run_tune("bundle", "import", "bundle.pyz", "results.zip", "--json", cwd=folder).json()
        assert (first["failures"], first["known"], first["added"]) == (0, 0, len(there))
        assert tried.isdisjoint(there)
        tried.update(there)
        if again:
            assert run_tune("bundle", "make", "tiny.onnx", *FROM, cwd=folder).status == 0
    found = run_tune("bundle", "import", "bundle.pyz", "results.zip", "--json", cwd=folder).json()
    assert (found["added"], found["known"]) == (0, len(there))  # nothing is counted twice


@pytest.mark.night
def test_there_and_back_for_opencl_without_tvm(tmp_path: Path, tiny: Path) -> None:
    python = thin_python()
    assert run_tune("board", "agent", "-o", "agent.pyz", cwd=tmp_path).status == 0
    facts = on_the_device("agent.pyz", "--facts", cwd=tmp_path, python=python)
    (tmp_path / "facts.json").write_text(facts.stdout)
    make = ("bundle", "make", tiny, "--facts", "facts.json", "--configs", 2, "-o", "b.pyz")
    made = run_tune(*make, "--device", "opencl:0", "--json", cwd=tmp_path)
    assert made.status == 0, made.err
    done = on_the_device("b.pyz", "-o", "r.zip", cwd=tmp_path, python=python)
    assert done.returncode == 0, done.stderr
    found = run_tune("bundle", "import", "b.pyz", "r.zip", "--json", cwd=tmp_path).json()
    assert (found["failures"], found["added"]) == (0, made.json()["candidates"])
    assert run_tune(*make, "--device", "opencl:0", cwd=tmp_path).status == 0
    done = on_the_device("b.pyz", "-o", "r.zip", cwd=tmp_path, python=python)  # the second, into the same file
    assert done.returncode == 0, done.stderr
    assert run_tune("bundle", "import", "b.pyz", "r.zip", "--json", cwd=tmp_path).json()["known"] == 0
    for device, line in (
        ("opencl:99", "no device opencl:99 (there: opencl:0 ("),
        ("gpu", "give cpu, opencl:N or cuda:N"),
    ):
        refused = run_tune(*make, "--device", device, cwd=tmp_path)
        assert (refused.status, len(refused.err.splitlines())) == (2, 1)
        assert line in refused.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["python3", "tune bundle run"])
def test_an_interrupted_run_goes_on(bundle: Path, how: str) -> None:
    folder, whole = bundle.parent, set(names(bundle))
    command = [sys.executable, bundle.name] if how == "python3" else [str(TUNE), "bundle", "run", bundle.name]
    with subprocess.Popen([*command, "-o", "r.zip"], cwd=folder, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert next(run.stderr).startswith("1 of")
        run.send_signal(signal.SIGINT)
        *_, last = run.stderr
    assert (run.returncode, last) == (130, "interrupted: the same command goes on\n")
    (partial,) = folder.glob("r.zip.*.partial")
    left = (partial / "results.jsonl").read_text().count('"candidate"')
    assert 1 <= left < len(whole)
    done = subprocess.run([*command, "-o", "r.zip"], cwd=folder, capture_output=True, text=True, check=True)
    assert f"{left} of {len(whole)} have results: going on" in done.stderr
    assert imported(bundle, "r.zip", "--json").json()["trials"] == len(whole)


def test_what_is_no_bundle_is_one_line(bundle: Path) -> None:
    folder = bundle.parent
    for words, why in (
        (("agent.pyz",), "not a bundle"),
        (("tiny.onnx",), "not a bundle"),
        (("nowhere.pyz",), "no such file"),
        (("b.pyz", "-o", "nowhere/r.zip"), "does not exist"),
    ):
        done = run_tune("bundle", "run", *words, cwd=folder)
        assert (done.status, why in done.error) == (2, True), done.err
    assert not list(folder.glob("*.partial"))


def test_a_wrong_result_is_found_out(bundle: Path) -> None:
    folder = bundle.parent
    on_the_device(bundle.name, "-o", "r.zip", cwd=folder)
    with zipfile.ZipFile(folder / "r.zip") as good, zipfile.ZipFile(folder / "bad.zip", "w") as bad:
        for name in good.namelist():
            data = good.read(name)
            bad.writestr(name, bytes(len(data)) if name.startswith("outputs/") else data)
    done = imported(bundle, "bad.zip", "--json").json()
    assert done["failures"] == done["trials"] > 0


def test_what_does_not_belong_together_is_one_line(bundle: Path) -> None:
    folder = bundle.parent
    (folder / "junk.zip").write_bytes(os.urandom(100))
    with zipfile.ZipFile(folder / "other.zip", "w") as other:
        for name, content in (("bundle.txt", "another"), ("facts.json", "{}"), ("results.jsonl", "")):
            other.writestr(name, content)
    for results, why in (
        ("nowhere.zip", "No such file"),
        ("junk.zip", "not a bundle and its results"),
        ("other.zip", "results of another bundle"),
    ):
        done = imported(bundle, results)
        assert (done.status, why in done.error) == (2, True), done.err
    (folder / "facts.json").write_text('{"machine": "vax"}')
    done = run_tune("bundle", "make", "m.onnx", "--facts", "nowhere.json", cwd=folder)
    assert done.status == 2
