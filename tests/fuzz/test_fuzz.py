"""A sample of what `python -m tests.fuzz.run` reads: no reader dies, hangs, or shows a traceback."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.board_agent.bundles import copied, on_the_device
from tests.fuzz import run
from tests.fuzz.formats import FORMATS
from tests.fuzz.mutations import bytes_mutated, json_mutated
from tests.selection import commit

COUNTS = run.shares(sorted(FORMATS), 1000)


@pytest.fixture
def materials(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make what `Format.make` makes, of a bundle that other tests have, too."""
    if name == "results":
        bundle = copied(request.getfixturevalue("made_bundle"), tmp_path)
        done = on_the_device(bundle.name, "-o", "r.zip", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_changed_inputs_are_told_in_one_line(name: str, materials: Path) -> None:
    """Others for every commit."""
    seed = int(commit()[:8] or "0", 16)
    assert list(run.read_inputs(name, COUNTS[name], seed, materials)) == []


def test_mutations_change_something_and_are_made_again_by_their_seed() -> None:
    value = {"a": [1, 2, {"b": "text"}], "c": None}
    for number in range(200):
        once, again = (json_mutated(value, random.Random(number)) for _ in range(2))
        assert repr(once) == repr(again)
    assert sum(json_mutated(value, random.Random(n)) != value for n in range(200)) > 150
    data = bytes(range(64))
    assert sum(bytes_mutated(data, random.Random(n)) != data for n in range(200)) > 180
    assert value == {"a": [1, 2, {"b": "text"}], "c": None}


def test_a_reader_that_dies_or_hangs_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real process that counts, and then does that."""
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys, time\n"
        "for n in range(int(sys.argv[3]), int(sys.argv[4])):\n"
        "    print(n, flush=True)\n"
        "    if n == 3: os.abort()\n"
        "    if n == 5: time.sleep(60)\n"
        """    if n == 7: print('{"number": 7, "what": "KeyError"}', flush=True)\n"""
    )
    real = subprocess.Popen
    monkeypatch.setattr(run, "HANG_SECONDS", 1.0)
    monkeypatch.setattr(run.subprocess, "Popen", lambda c, **o: real([sys.executable, str(script), *c[3:]], **o))
    found = [(problem.number, problem.what.split()[0]) for problem in run.read_inputs("x", 9, 0, tmp_path)]
    assert found == [(3, "ended"), (5, "took"), (7, "KeyError")]
