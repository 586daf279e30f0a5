"""Bundles of a small network for this machine, also such that simulate what a device may do, and how they are run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network

FROM = ("--facts", "facts.json", "--configs", 3, "--threads", 1)
MANIFEST = "bundle/manifest.json"
BLOBS = "bundle/blobs/"


def on_the_device(
    *words: object, cwd: Path, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """With nothing of the project on its path: only Python, NumPy and TVM's wheel."""
    command = [python, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def make_bundle(folder: Path) -> None:
    """A network "tiny.onnx", "agent.pyz", "facts.json" of this machine, and the bundle "b.pyz" with some candidates."""
    write_tiny_network(folder / "tiny.onnx")
    assert run_tune("board", "agent", "-o", "agent.pyz", cwd=folder).status == 0
    (folder / "facts.json").write_text(on_the_device("agent.pyz", "--facts", cwd=folder).stdout)
    made = run_tune("bundle", "make", "tiny.onnx", *FROM, "-o", "b.pyz", "--json", cwd=folder)
    assert made.status == 0, made.err
    assert made.json()["candidates"] > 6


def copied(folder: Path, to: Path) -> Path:
    """All that was made, once more; the bundle."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    return to / "b.pyz"


def manifest_of(bundle: Path) -> dict[str, Any]:
    with zipfile.ZipFile(bundle) as archive:
        return json.loads(archive.read(MANIFEST))


def names(bundle: Path) -> list[str]:
    return [c["name"] for c in manifest_of(bundle)["candidates"]]


def rewritten(archive: Path, name: str, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of an archive under another name, with its files changed."""
    with zipfile.ZipFile(archive) as old:
        files = {entry: old.read(entry) for entry in old.namelist()}
    change(files)
    with zipfile.ZipFile(archive.with_name(name), "w") as new:
        for entry, data in files.items():
            new.writestr(entry, data)
    return archive.with_name(name)


def with_manifest(bundle: Path, name: str, **more: Any) -> Path:
    """The same bundle with other settings of how it is measured."""

    def change(files: dict[str, bytes]) -> None:
        files[MANIFEST] = json.dumps({**json.loads(files[MANIFEST]), **more}).encode()

    return rewritten(bundle, name, change)


def simulated(bundle: Path, name: str, module: str, old: str, new: str) -> Path:
    """The same bundle, in whose agent a module does something else."""

    def change(files: dict[str, bytes]) -> None:
        source = files[f"board_agent/{module}.py"].decode()
        assert source.count(old) == 1
        files[f"board_agent/{module}.py"] = source.replace(old, new).encode()

    return rewritten(bundle, name, change)


def results_of(archive: Path) -> list[dict[str, Any]]:
    """The lines of candidates."""
    with zipfile.ZipFile(archive) as packed:
        lines = [json.loads(line) for line in packed.read("results.jsonl").splitlines()]
    return [line for line in lines if "candidate" in line]
