"""Commands delete and overwrite nothing that they did not create."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.inotify import Watched
from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network

# What a careless program would take for its own.
NAMES = (
    *("k1.so", "k1.json", "edgetune-old/k2.so", "edgetune-demo/tiny.onnx", "tmpabc/keep", ".m.x.partial/kernels.so"),
    *(".page.html.1.partial", "m.old/manifest.json", "parallel-0.so", "pocl/cache", "t.db.bak", "results.zip"),
)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The folder of the work, of temporary files, and a home, each with files of somebody's that are a day old."""
    made = {name: tmp_path / name for name in ("work", "tmp", "home")}
    for folder in made.values():
        for name in NAMES:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        for path in sorted(folder.rglob("*"), reverse=True):
            os.utime(path, (time.time() - 86400,) * 2)
    return made


def test_what_is_watched_is_seen(places: dict[str, Path]) -> None:
    victim = places["work"] / "edgetune-old" / "k2.so"
    with Watched(*places.values()) as watched:
        (places["work"] / "new").write_text("x")
        assert watched.found() == set()
        victim.write_text("theirs")
        victim.unlink()
        assert {what for path, what in watched.found() if path == victim} >= {"modified", "deleted"}


@pytest.mark.night
def test_nothing_of_others_is_touched(places: dict[str, Path]) -> None:
    work, env = places["work"], {"TMPDIR": str(places["tmp"]), "HOME": str(places["home"])}
    write_tiny_network(work / "tiny.onnx")
    (work / "m").mkdir()
    commands = {
        "model": ("model", "tiny.onnx", "--trials", 8, "--threads", 1, "--db", "t.db"),
        "build": ("build", "tiny.onnx", "--threads", 1, "--db", "t.db", "-o", "m"),
        "again": ("build", "tiny.onnx", "--threads", 1, "--db", "t.db", "-o", "m"),
        "report": ("report", "--db", "t.db", "-o", "page.html"),
        "bench": ("bench", "m", "--against", "ort", "--rounds", 2),
        "run": ("run", "m"),
    }
    for name, words in commands.items():
        own = {"t.db", "t.db-wal", "t.db-shm", "m"} if name != "model" else set()
        with Watched(*places.values()) as watched:
            done = run_tune(*words, cwd=work, env=env)
            assert done.status == 0, (name, done.err)
            touched = {(str(p.relative_to(work.parent)), how) for p, how in watched.found() if p not in places.values()}
        mine = {(p, how) for p, how in touched if Path(p).parts[1] not in own}
        assert mine == set(), name
    assert not list(places["home"].rglob("*onnxruntime*"))  # which tells its maker of models, unless it is told not to
    assert all((folder / name).read_text() == "mine" for folder in places.values() for name in NAMES)
