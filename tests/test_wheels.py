"""What is published installs: the source distribution and the wheel of a clean checkout, in a fresh environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = (sys.executable, "-m", "uv")
PACKAGES = ("edgetune", "tuner", "templates", "vision_ops", "tuning_db", "board_agent")

pytestmark = pytest.mark.night  # the build and the new environment come from the package registry, or from uv's cache


def _run(words: Sequence[object], cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(w) for w in words], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("wheels")
    archive = folder / "checkout.tar"
    _run(("git", "archive", "--format=tar", "-o", archive, "HEAD"), ROOT)
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "checkout", filter="data")
    _run((*UV, "build", "-q", "--out-dir", folder / "dist", folder / "checkout"), folder)
    return folder / "dist"


def test_one_wheel_serves_every_architecture(built: Path) -> None:
    """Native code is compiled where it runs, from sources in the wheel."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    own = subprocess.run(("git", "ls-files", *PACKAGES), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name for name in own.splitlines() if not name.endswith(".d.ts")} <= names  # these are for checks alone
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "tools/"))]


def test_the_wheel_works_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    _run((*UV, "venv", "-q", "-p", sys.executable, tmp_path / "venv"), tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    _run((*UV, "pip", "install", "-q", "-p", python, "-c", ROOT / "requirements.lock", wheel), tmp_path)
    said = _run((tmp_path / "venv" / "bin" / "tune", "--version"), tmp_path)
    assert said.startswith("edgetune ")
    where = _run((python, "-c", "import edgetune; print(edgetune.__file__, edgetune.load.__name__)"), tmp_path)
    assert str(tmp_path) in where
    words = ("op", "dense", "--shape", "1,16,10", "--threads", 1, "--trials", 2, "--db", "t.db", "--json")
    assert '"trials"' in _run((tmp_path / "venv" / "bin" / "tune", *words), tmp_path)
