"""A device that cannot be reached: facts come, a bundle goes, results come, and are checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.board_agent.thin import thin_python
from tests.tuner.cli.conftest import Done, run_tune

FROM = ("--facts", "facts.json", "--configs", 3, "--threads", 1)


def candidates(bundle: Path) -> set[str]:
    with zipfile.ZipFile(bundle) as archive:
        return {c["name"] for c in json.loads(archive.read("bundle/manifest.json"))["candidates"]}


def on_the_device(*words: object, cwd: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """With nothing of the project on its path: only Python, NumPy and TVM's wheel."""
    command = [python, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def bundle(tmp_path: Path, tiny: Path) -> Path:
    """A bundle of a small network, made from this machine's facts."""
    assert run_tune("board", "agent", "-o", "agent.pyz", cwd=tmp_path).status == 0
    facts = on_the_device("agent.pyz", "--facts", cwd=tmp_path)
    (tmp_path / "facts.json").write_text(facts.stdout)
    made = run_tune("bundle", "make", tiny, *FROM, "-o", "b.pyz", "--json", cwd=tmp_path)
    assert made.status == 0, made.err
    assert made.json()["candidates"] > 3
    return tmp_path / "b.pyz"


def imported(bundle: Path, results: str = "r.zip", *words: object) -> Done:
    return run_tune("bundle", "import", bundle, results, *words, cwd=bundle.parent)


def test_there_and_back(bundle: Path, tiny: Path) -> None:
    folder = bundle.parent
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("tune bundle import b.pyz r.zip")  # which is what is run now
    first = imported(bundle, "r.zip", "--json").json()
    assert (first["failures"], first["known"]) == (0, 0)
    assert first["added"] == first["trials"] > 3
    assert imported(bundle, "r.zip", "--json").json()["added"] == 0  # nothing is counted twice
    again = run_tune("bundle", "make", tiny, *FROM, "--json", cwd=folder)
    assert again.json()["candidates"] > 0
    assert candidates(bundle).isdisjoint(candidates(folder / "bundle.pyz"))  # it goes on where the first ended


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
    for device, line in (
        ("opencl:99", "no device opencl:99 (there: opencl:0 ("),
        ("gpu", "give cpu, opencl:N or cuda:N"),
    ):
        refused = run_tune(*make, "--device", device, cwd=tmp_path)
        assert (refused.status, len(refused.err.splitlines())) == (2, 1)
        assert line in refused.err


def test_a_device_that_cannot_run_a_bundle_says_so_and_blames_no_candidate(bundle: Path) -> None:
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=bundle.parent, python=thin_python())
    assert done.returncode == 2
    assert "No module named 'tvm'" in done.stderr
    assert not (bundle.parent / "r.zip").exists()


def test_an_interrupted_run_goes_on(bundle: Path) -> None:
    folder = bundle.parent
    whole = candidates(bundle)
    with subprocess.Popen(
        [sys.executable, bundle, "-o", "r.zip"], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        assert next(run.stderr).startswith("1 of")
        run.terminate()
    left = (folder / "r.zip.partial" / "results.jsonl").read_text().count("\n")
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=folder)
    assert done.stderr.count(" of ") == len(whole) - left
    assert imported(bundle, "r.zip", "--json").json()["trials"] == len(whole)


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
