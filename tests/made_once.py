"""What tests of several files read is made once in a run, by whichever of xdist's processes needs it first."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, in this process or in another one of this run: not to be written to."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the whole run's
    folder, making = base / name, base / f"{name}.making"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(making, ignore_errors=True)  # of a process that failed
            making.mkdir()
            make(making)
            making.rename(folder)
    return folder


def tune_tiny_network(folder: Path) -> None:
    """Make tiny.onnx, and t.db with 8 trials of its workloads on PoCL."""
    model = write_tiny_network(folder / "tiny.onnx")
    device = f"opencl:{device_number('pocl')}"
    done = run_tune("model", model.name, "--device", device, "--db", "t.db", "--trials", 8, cwd=folder)
    assert done.status == 0, done.err
