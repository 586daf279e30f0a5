"""`tune` runs the real command in a process of its own, in a folder of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.forks import FORKS
from tests.tuner.tiny_network import write_tiny_network

TUNE = Path(sys.executable).with_name("tune")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def error(self) -> str:
        """The one line on standard error of a command that was refused."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("tune: "), self.err
        return lines[0]


def run_tune(*words: object, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """Run `tune` with these words; never with a traceback. With an environment of its own it is started as a user
    starts it: what is imported reads some of it."""
    argv = list(map(str, [TUNE, *words]))
    environment = {**os.environ, "COLUMNS": "100", **(env or {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if env is None:
            status = FORKS.run(argv, cwd, environment, out, err)
        else:
            status = subprocess.run(argv, cwd=cwd, env=environment, stdout=out, stderr=err).returncode
        for file in (out, err):
            file.seek(0)
        done = Done(status, out.read().decode(), err.read().decode())
    assert "Traceback" not in done.err, done.err
    return done


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., Done]:
    """`run_tune` in the test's folder."""
    return partial(run_tune, cwd=tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A network that is tuned in seconds."""
    return write_tiny_network(tmp_path / "tiny.onnx")


def everything_under(folder: Path) -> dict[str, bytes | None]:
    """Relative path to content of all files (None for a folder): to show that nothing was written."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def result_and_reference(tune: Callable[..., Done], tiny: Path, module: str) -> tuple[np.ndarray, np.ndarray]:
    """What `tune run` makes of random inputs with a module of the tiny network, and what onnx does."""
    folder = tiny.parent
    inputs = {"data": np.random.default_rng(3).standard_normal((1, 3, 16, 16), dtype=np.float32)}
    np.savez(folder / "x.npz", **inputs)
    ran = tune("run", module, "--input", "x.npz", "--output", "y.npz")
    assert ran.status == 0, ran.err
    (expected,) = ReferenceEvaluator(onnx.load(tiny)).run(None, inputs)
    with np.load(folder / "y.npz") as outputs:
        (value,) = outputs.values()
    return value, expected
